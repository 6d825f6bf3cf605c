-- A ledger that commit 7670f14 wrote, as text (sqlite3 .dump).
PRAGMA application_id = 1346458693;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, mechanism TEXT, parameters TEXT,
    protection TEXT, coordinator TEXT, asked INTEGER, answered INTEGER, batch_digest TEXT UNIQUE,
    outputs_digest TEXT, noise TEXT, private INTEGER, version TEXT NOT NULL, epsilon REAL, body TEXT,
    previous TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE, signature TEXT);
INSERT INTO "entries" VALUES(0,'2026-11-22T20:40:10.229+00:00','terms',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'0.1.0',NULL,'{"public_key":null,"terms":{"charged":"outcome","coordinator":{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null},"delta":1e-05,"epsilon":null,"mechanisms":[{"name":"gnmax","parameters":{"num_classes":3,"num_teachers":1000,"sigma":163.0}}],"most_answered":null,"most_asked":null,"noise":"not private: seeded noise","private":false,"protection":{"adjacency":"replace-one","unit":"hospital","votes_moved":20},"sanitise":null,"study_digest":"abababababababababababababababababababababababababababababababab"}}','0000000000000000000000000000000000000000000000000000000000000000','acb2042366b0988ac914a12bda0924bfed5e5833a466ac9738d9bbca7084e04e',NULL);
INSERT INTO "entries" VALUES(1,'2026-11-22T20:40:12.894+00:00','charge','gnmax','{"num_classes":3,"num_teachers":1000,"sigma":163.0}','{"adjacency":"replace-one","unit":"hospital","votes_moved":20}','{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null}',20,20,'6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d','6e5b66fbf963add1f6adf12ce1ff5463fa0e23594e43f81c3e3b0ce51f924fba','not private: seeded noise',0,'0.1.0',2.80484997129474900035e+00,NULL,'acb2042366b0988ac914a12bda0924bfed5e5833a466ac9738d9bbca7084e04e','a7a622ef4d308a02d7fecce78bd492f9e090cf00f3661c82089c1fea71504a4e',NULL);
INSERT INTO "entries" VALUES(2,'2026-11-22T20:40:14.689+00:00','charge','gnmax','{"num_classes":3,"num_teachers":1000,"sigma":163.0}','{"adjacency":"replace-one","unit":"hospital","votes_moved":20}','{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null}',20,20,'4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a','d887f2ea169dac14130ad9f32ba869c919c6058a4909da0fe87b428befc954f1','not private: seeded noise',0,'0.1.0',4.12365166014991935128e+00,NULL,'a7a622ef4d308a02d7fecce78bd492f9e090cf00f3661c82089c1fea71504a4e','38bb11d2c1508d77afee809b10d1b8aa70150bf01b2db83efa5544fa7d218689',NULL);
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL);
INSERT INTO "head" VALUES(1,2,'38bb11d2c1508d77afee809b10d1b8aa70150bf01b2db83efa5544fa7d218689');
CREATE TABLE released (
    seq INTEGER NOT NULL REFERENCES entries (seq), position INTEGER NOT NULL, query INTEGER NOT NULL,
    answered INTEGER NOT NULL, label INTEGER NOT NULL, PRIMARY KEY (seq, position)) WITHOUT ROWID;
INSERT INTO "released" VALUES(1,0,0,1,0);
INSERT INTO "released" VALUES(1,1,1,1,0);
INSERT INTO "released" VALUES(1,2,2,1,0);
INSERT INTO "released" VALUES(1,3,3,1,0);
INSERT INTO "released" VALUES(1,4,4,1,0);
INSERT INTO "released" VALUES(1,5,5,1,0);
INSERT INTO "released" VALUES(1,6,6,1,0);
INSERT INTO "released" VALUES(1,7,7,1,0);
INSERT INTO "released" VALUES(1,8,8,1,0);
INSERT INTO "released" VALUES(1,9,9,1,0);
INSERT INTO "released" VALUES(1,10,10,1,0);
INSERT INTO "released" VALUES(1,11,11,1,0);
INSERT INTO "released" VALUES(1,12,12,1,0);
INSERT INTO "released" VALUES(1,13,13,1,0);
INSERT INTO "released" VALUES(1,14,14,1,0);
INSERT INTO "released" VALUES(1,15,15,1,0);
INSERT INTO "released" VALUES(1,16,16,1,0);
INSERT INTO "released" VALUES(1,17,17,1,0);
INSERT INTO "released" VALUES(1,18,18,1,0);
INSERT INTO "released" VALUES(1,19,19,1,0);
INSERT INTO "released" VALUES(2,0,100,1,0);
INSERT INTO "released" VALUES(2,1,101,1,0);
INSERT INTO "released" VALUES(2,2,102,1,0);
INSERT INTO "released" VALUES(2,3,103,1,0);
INSERT INTO "released" VALUES(2,4,104,1,0);
INSERT INTO "released" VALUES(2,5,105,1,0);
INSERT INTO "released" VALUES(2,6,106,1,0);
INSERT INTO "released" VALUES(2,7,107,1,0);
INSERT INTO "released" VALUES(2,8,108,1,0);
INSERT INTO "released" VALUES(2,9,109,1,0);
INSERT INTO "released" VALUES(2,10,110,1,0);
INSERT INTO "released" VALUES(2,11,111,1,0);
INSERT INTO "released" VALUES(2,12,112,1,0);
INSERT INTO "released" VALUES(2,13,113,1,0);
INSERT INTO "released" VALUES(2,14,114,1,0);
INSERT INTO "released" VALUES(2,15,115,1,0);
INSERT INTO "released" VALUES(2,16,116,1,0);
INSERT INTO "released" VALUES(2,17,117,1,0);
INSERT INTO "released" VALUES(2,18,118,1,0);
INSERT INTO "released" VALUES(2,19,119,1,0);
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries is append-only'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries is append-only'); END;
CREATE TRIGGER released_no_update BEFORE UPDATE ON released BEGIN SELECT RAISE(ABORT, 'released is append-only'); END;
CREATE TRIGGER released_no_delete BEFORE DELETE ON released BEGIN SELECT RAISE(ABORT, 'released is append-only'); END;
CREATE TRIGGER head_no_delete BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'head is append-only'); END;
CREATE TRIGGER head_no_update BEFORE UPDATE ON head WHEN NEW.id IS NOT 1 OR NEW.seq IS NOT OLD.seq + 1 BEGIN SELECT RAISE(ABORT, 'head is append-only'); END;
COMMIT;
