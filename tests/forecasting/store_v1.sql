BEGIN TRANSACTION;
CREATE TABLE metatkgr_fact (
	sequence INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	digest VARCHAR(64) NOT NULL, 
	subject TEXT NOT NULL, 
	relation TEXT NOT NULL, 
	object TEXT NOT NULL, 
	time TEXT NOT NULL, 
	received DATETIME DEFAULT CURRENT_TIMESTAMP, 
	UNIQUE (digest)
);
INSERT INTO "metatkgr_fact" VALUES(1,'6ff5334abafe0ab51ca146d193b06dacc5c4e863e1f51ba9d6bdeda648420d70','Tarn','plays for','Ostermark','2018-03-05','2026-11-16 14:39:39');
INSERT INTO "metatkgr_fact" VALUES(2,'5ccf0d4781c1a35ea37e1bad8b9f3d4e2523646f87414c51ecd0e936248747ce','Dairy','sponsors','Ostermark','2018-03-12','2026-11-16 14:39:39');
INSERT INTO "metatkgr_fact" VALUES(3,'fcdb9d4a67a03e894aa084b9a741dd1eeb982f99b6bba6270bcfae4820aab1c9','Tarn','plays for','Velden','1990-01-01','2026-11-16 14:39:39');
CREATE TABLE metatkgr_probe (
	writes BIGINT NOT NULL
);
INSERT INTO "metatkgr_probe" VALUES(1);
CREATE TABLE metatkgr_store (
	version INTEGER NOT NULL
);
INSERT INTO "metatkgr_store" VALUES(1);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('metatkgr_fact',3);
COMMIT;
