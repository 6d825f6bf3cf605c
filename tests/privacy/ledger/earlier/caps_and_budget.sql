-- A ledger that commit 7670f14 wrote, as text (sqlite3 .dump).
PRAGMA application_id = 1346458693;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, mechanism TEXT, parameters TEXT,
    protection TEXT, coordinator TEXT, asked INTEGER, answered INTEGER, batch_digest TEXT UNIQUE,
    outputs_digest TEXT, noise TEXT, private INTEGER, version TEXT NOT NULL, epsilon REAL, body TEXT,
    previous TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE, signature TEXT);
INSERT INTO "entries" VALUES(0,'2026-11-22T20:39:27.618+00:00','terms',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'0.1.0',NULL,'{"public_key":null,"terms":{"charged":"outcome","coordinator":{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null},"delta":1e-05,"epsilon":2.0,"mechanisms":[{"name":"confident-gnmax","parameters":{"num_classes":3,"num_teachers":1000,"sigma1":250.0,"sigma2":200.0,"threshold":600.0}}],"most_answered":100,"most_asked":400,"noise":"not private: seeded noise","private":false,"protection":{"adjacency":"replace-one","unit":"record","votes_moved":1},"sanitise":null,"study_digest":"abababababababababababababababababababababababababababababababab"}}','0000000000000000000000000000000000000000000000000000000000000000','9802ad71645668b2d729d39d1c2f0daad53190c78d904cab47eea0e6fbf08bd2',NULL);
INSERT INTO "entries" VALUES(1,'2026-11-22T20:39:42.191+00:00','charge','confident-gnmax','{"num_classes":3,"num_teachers":1000,"sigma1":250.0,"sigma2":200.0,"threshold":600.0}','{"adjacency":"replace-one","unit":"record","votes_moved":1}','{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null}',8,6,'6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d','aa40fc2c95b2628d7793d373c31f8679fcb8d0b94129bde2dbe4a4b6c21c39f6','not private: seeded noise',0,'0.1.0',5.43391454898852557797e-02,NULL,'9802ad71645668b2d729d39d1c2f0daad53190c78d904cab47eea0e6fbf08bd2','5c230fcfb45c8981b85d7d44909f5d3e463ae61bb0ddbdb62b1bf2bd1ca05d68',NULL);
INSERT INTO "entries" VALUES(2,'2026-11-22T20:39:43.320+00:00','charge','confident-gnmax','{"num_classes":3,"num_teachers":1000,"sigma1":250.0,"sigma2":200.0,"threshold":600.0}','{"adjacency":"replace-one","unit":"record","votes_moved":1}','{"colluders":0,"kind":"plain","sigma_party":null,"survivors":null}',8,5,'4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a','ba7d00806dc2c65b9e4d410f58acbe2411687fa6b90292b9b16a9597056dfe83','not private: seeded noise',0,'0.1.0',7.61170412543097363311e-02,NULL,'5c230fcfb45c8981b85d7d44909f5d3e463ae61bb0ddbdb62b1bf2bd1ca05d68','b720df6fb423d0107e1951da506f6768a4023204ba510f940e2a013336677ddf',NULL);
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL);
INSERT INTO "head" VALUES(1,2,'b720df6fb423d0107e1951da506f6768a4023204ba510f940e2a013336677ddf');
CREATE TABLE released (
    seq INTEGER NOT NULL REFERENCES entries (seq), position INTEGER NOT NULL, query INTEGER NOT NULL,
    answered INTEGER NOT NULL, label INTEGER NOT NULL, PRIMARY KEY (seq, position)) WITHOUT ROWID;
INSERT INTO "released" VALUES(1,0,0,0,-1);
INSERT INTO "released" VALUES(1,1,1,1,1);
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
INSERT INTO "released" VALUES(2,4,104,1,0);
INSERT INTO "released" VALUES(2,5,105,0,-1);
INSERT INTO "released" VALUES(2,6,106,0,-1);
INSERT INTO "released" VALUES(2,7,107,1,0);
CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'entries is append-only'); END;
CREATE TRIGGER entries_no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'entries is append-only'); END;
CREATE TRIGGER released_no_update BEFORE UPDATE ON released BEGIN SELECT RAISE(ABORT, 'released is append-only'); END;
CREATE TRIGGER released_no_delete BEFORE DELETE ON released BEGIN SELECT RAISE(ABORT, 'released is append-only'); END;
CREATE TRIGGER head_no_delete BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'head is append-only'); END;
CREATE TRIGGER head_no_update BEFORE UPDATE ON head WHEN NEW.id IS NOT 1 OR NEW.seq IS NOT OLD.seq + 1 BEGIN SELECT RAISE(ABORT, 'head is append-only'); END;
COMMIT;
