-- The tables of the inbox. Whatever others wrote (codes, names, headers, bodies) is a BLOB: a zero byte, bad UTF-8
-- or a code of a megabyte must not fail a statement. Times are microseconds since 1970.

CREATE TABLE platform (
	hash BLOB PRIMARY KEY,
	code BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE lane (
	key         BLOB PRIMARY KEY, -- of tenant and platform, or of the event's type and platform; never deleted
	platform    BLOB NOT NULL,    -- its hash, the second half of the key
	tenant      BLOB NOT NULL,
	kind        BLOB NOT NULL,    -- the event's type, if there is no tenant
	tail        INTEGER NOT NULL DEFAULT 0,
	memory      BLOB NOT NULL DEFAULT x'', -- what no statement asks for: what a copy is compared with, who delivers what
	waiting     INTEGER NOT NULL DEFAULT 0,
	again       INTEGER NOT NULL DEFAULT 0,
	parked      INTEGER NOT NULL DEFAULT 0,
	refused     INTEGER NOT NULL DEFAULT 0,
	bytes       INTEGER NOT NULL DEFAULT 0,
	since       INTEGER NOT NULL DEFAULT {never},
	failing     INTEGER NOT NULL DEFAULT 0,
	tried       INTEGER NOT NULL DEFAULT 0,
	wish        INTEGER NOT NULL DEFAULT 0,
	paused      INTEGER NOT NULL DEFAULT 0,
	due         INTEGER NOT NULL DEFAULT {never}, -- when it may be tried, or when its owner's leave ends
	owner       BLOB NOT NULL DEFAULT x''
) WITHOUT ROWID;
CREATE INDEX lane_due    ON lane (platform, failing, due, waiting, parked, bytes, since) WHERE bytes > 0; -- the last four are for figures
CREATE INDEX lane_missed ON lane (platform, tried) WHERE failing = 2 AND due < {never};
CREATE INDEX lane_since  ON lane (platform, since) WHERE failing = 2 AND due < {never};
CREATE INDEX lane_failed ON lane (since) WHERE failing > 0;

CREATE TABLE webhook (
	seq      INTEGER PRIMARY KEY,
	uuid     BLOB NOT NULL,
	lane     BLOB NOT NULL, -- empty: it was refused, and nobody knows whose it is
	type     BLOB NOT NULL,
	snapshot INTEGER NOT NULL,
	digest   BLOB NOT NULL,
	size     INTEGER NOT NULL,
	received INTEGER NOT NULL,
	state    INTEGER NOT NULL, -- 0 waiting, 1 parked, 2 refused, 3 delivered, 4 superseded, 5 discarded, 6 kept, 7 accepted
	ord      INTEGER NOT NULL, -- its place in the lane
	changed  INTEGER NOT NULL,
	status   BLOB NOT NULL   -- JSON
);
CREATE INDEX webhook_lane     ON webhook (lane, seq);
CREATE INDEX webhook_waiting  ON webhook (lane, ord) WHERE state = 0;
CREATE INDEX webhook_held     ON webhook (seq) WHERE state IN (1, 2);
CREATE INDEX webhook_finished ON webhook (changed, seq) WHERE state > 2;
CREATE INDEX webhook_refused  ON webhook (digest) WHERE state = 2;

CREATE TABLE content ( -- written once
	seq    INTEGER PRIMARY KEY,
	header BLOB NOT NULL,
	body   BLOB NOT NULL
);

CREATE TABLE snapshot ( -- each tenant's last, for entitlements
	lane     BLOB PRIMARY KEY,
	seq      INTEGER NOT NULL,
	uuid     BLOB NOT NULL,
	received INTEGER NOT NULL,
	name     BLOB NOT NULL,
	features BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE seen_id ( -- signed webhook-ids of the last 15 minutes
	lane   BLOB NOT NULL,
	id     BLOB NOT NULL,
	digest BLOB NOT NULL,
	seq    INTEGER NOT NULL,
	at     INTEGER NOT NULL,
	uuid   BLOB NOT NULL,
	PRIMARY KEY (lane, id, digest)
) WITHOUT ROWID;
CREATE INDEX seen_id_at ON seen_id (at);

CREATE TABLE pause (
	key      BLOB PRIMARY KEY,
	receiver BLOB NOT NULL,
	platform BLOB NOT NULL,
	tenant   BLOB NOT NULL,
	since    INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE action ( -- what people did
	id     INTEGER PRIMARY KEY AUTOINCREMENT,
	at     INTEGER NOT NULL,
	entry  BLOB NOT NULL   -- JSON
);
CREATE INDEX action_at ON action (at);

CREATE TABLE number (last INTEGER NOT NULL);
INSERT INTO number VALUES (0);
