-- What is special to SQLite; the tables are in engine/001.sql.

CREATE INDEX lane_due ON lane (receiver, last_result, due, waiting, parked, bytes, waiting_since) WHERE bytes > 0; -- the last four are for figures

-- The last number that a webhook got.
CREATE TABLE number (last INTEGER NOT NULL);
INSERT INTO number VALUES (0);
