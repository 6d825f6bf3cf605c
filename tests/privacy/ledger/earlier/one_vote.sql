-- A ledger that commit 7670f14 wrote, as text (sqlite3 .dump).
PRAGMA application_id = 1346458693;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, mechanism TEXT, parameters TEXT,
    protection TEXT, coordinator TEXT, asked INTEGER, answered INTEGER, batch_digest TEXT UNIQUE,
    outputs_digest TEXT, noise TEXT, private INTEGER, version TEXT NOT NULL, epsilon REAL, body TEXT,
    previous TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE, signature TEXT);
INSERT INTO "entries" VALUES(0,'2026-11-22T20:39:26.148+00:00','terms',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'0.1.0',NULL,'{"public_key":null,"terms":{"charged":"outcome","coordinator":{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null},"delta":1e-05,"epsilon":null,"mechanisms":[{"name":"confident-gnmax","parameters":{"num_classes":3,"num_teachers":1000,"sigma1":256.0,"sigma2":152.0,"threshold":600.0}}],"most_answered":null,"most_asked":null,"noise":"not private: seeded noise","private":false,"protection":{"adjacency":"replace-one","unit":"record","votes_moved":1},"sanitise":null,"study_digest":"abababababababababababababababababababababababababababababababab"}}','0000000000000000000000000000000000000000000000000000000000000000','c7046adf246e25e8f5feaa66d1ea00474b2605c056fa58829a23d596770b2b09',NULL);
INSERT INTO "entries" VALUES(1,'2026-11-22T20:39:26.818+00:00','charge','confident-gnmax','{"num_classes":3,"num_teachers":1000,"sigma1":256.0,"sigma2":152.0,"threshold":600.0}','{"adjacency":"replace-one","unit":"record","votes_moved":1}','{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null}',8,6,'6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d','289b4a07ae066cb747d92885086673e48d5fe2955478668d643cc451168a5a6f','not private: seeded noise',0,'0.1.0',6.80424464339605544749e-02,NULL,'c7046adf246e25e8f5feaa66d1ea00474b2605c056fa58829a23d596770b2b09','39eb544e22aed5b189e9f7347a28f31d779e77f341018342cb26f8db20b2eab4',NULL);
INSERT INTO "entries" VALUES(2,'2026-11-22T20:39:27.581+00:00','charge','confident-gnmax','{"num_classes":3,"num_teachers":1000,"sigma1":256.0,"sigma2":152.0,"threshold":600.0}','{"adjacency":"replace-one","unit":"record","votes_moved":1}','{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null}',8,4,'4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a','ac3ae543a5e9dcc44754eedf521157bf902f5ce5bdd1cb8f452af7855674269f','not private: seeded noise',0,'0.1.0',9.08543044057355808629e-02,NULL,'39eb544e22aed5b189e9f7347a28f31d779e77f341018342cb26f8db20b2eab4','fbd2e94530b56ac6ee41209a2a39b968a95aa7277bbcd96410834814ae6255f7',NULL);
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL);
INSERT INTO "head" VALUES(1,2,'fbd2e94530b56ac6ee41209a2a39b968a95aa7277bbcd96410834814ae6255f7');
CREATE TABLE released (
    seq INTEGER NOT NULL REFERENCES entries (seq), position INTEGER NOT NULL, query INTEGER NOT NULL,
    answered INTEGER NOT NULL, label INTEGER NOT NULL, PRIMARY KEY (seq, position)) WITHOUT ROWID;
INSERT INTO "released" VALUES(1,0,0,0,-1);
INSERT INTO "released" VALUES(1,1,1,1,0);
INSERT INTO "released" VALUES(1,2,2,0,-1);
INSERT INTO "released" VALUES(1,3,3,1,0);
INSERT INTO "released" VALUES(1,4,4,1,0);
INSERT INTO "released" VALUES(1,5,5,1,0);
INSERT INTO "released" VALUES(1,6,6,1,0);
INSERT INTO "released" VALUES(1,7,7,1,0);
INSERT INTO "released" VALUES(2,0,100,1,0);
INSERT INTO "released" VALUES(2,1,101,1,0);
INSERT INTO "released" VALUES(2,2,102,1,0);
INSERT INTO "released" VALUES(2,3,103,0,-1);
INSERT INTO "released" VALUES(2,4,104,0,-1);
INSERT INTO "released" VALUES(2,5,105,0,-1);
INSERT INTO "released" VALUES(2,6,106,1,0);
INSERT INTO "released" VALUES(2,7,107,0,-1);
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries is append-only'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries is append-only'); END;
CREATE TRIGGER released_no_update BEFORE UPDATE ON released BEGIN SELECT RAISE(ABORT, 'released is append-only'); END;
CREATE TRIGGER released_no_delete BEFORE DELETE ON released BEGIN SELECT RAISE(ABORT, 'released is append-only'); END;
CREATE TRIGGER head_no_delete BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'head is append-only'); END;
CREATE TRIGGER head_no_update BEFORE UPDATE ON head WHEN NEW.id IS NOT 1 OR NEW.seq IS NOT OLD.seq + 1 BEGIN SELECT RAISE(ABORT, 'head is append-only'); END;
COMMIT;
