-- The tables of the inbox. Whatever others wrote (codes, names, headers, bodies) is bytea: a zero byte, bad UTF-8
-- or a code of a megabyte must not fail a statement. Times are microseconds since 1970.

CREATE TABLE {schema}.platform (
	hash bytea PRIMARY KEY,
	code bytea NOT NULL
);

CREATE TABLE {schema}.lane (
	key         bytea PRIMARY KEY, -- of tenant and platform, or of the event's type and platform; never deleted
	platform    bytea NOT NULL,    -- its hash, the second half of the key
	tenant      bytea NOT NULL,
	kind        bytea NOT NULL,    -- the event's type, if there is no tenant
	tail        bigint NOT NULL DEFAULT 0,
	memory      bytea NOT NULL DEFAULT '', -- what no statement asks for: what a copy is compared with, who delivers what
	waiting     bigint NOT NULL DEFAULT 0,
	again       bigint NOT NULL DEFAULT 0,
	parked      bigint NOT NULL DEFAULT 0,
	refused     bigint NOT NULL DEFAULT 0,
	bytes       bigint NOT NULL DEFAULT 0,
	since       bigint NOT NULL DEFAULT {never},
	failing     bigint NOT NULL DEFAULT 0,
	tried       bigint NOT NULL DEFAULT 0,
	wish        bigint NOT NULL DEFAULT 0,
	paused      bigint NOT NULL DEFAULT 0,
	due         bigint NOT NULL DEFAULT {never}, -- when it may be tried, or when its owner's leave ends
	owner       bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lane_due    ON {schema}.lane (platform, failing, due) WHERE bytes > 0; -- also for figures
CREATE INDEX lane_missed ON {schema}.lane (platform, tried) WHERE failing = 2 AND due < {never};
CREATE INDEX lane_since  ON {schema}.lane (platform, since) WHERE failing = 2 AND due < {never};
CREATE INDEX lane_failed ON {schema}.lane (since) WHERE failing > 0;

CREATE TABLE {schema}.webhook (
	seq      bigint PRIMARY KEY,
	uuid     bytea NOT NULL,
	lane     bytea NOT NULL, -- empty: it was refused, and nobody knows whose it is
	type     bytea NOT NULL,
	snapshot bigint NOT NULL,
	digest   bytea NOT NULL,
	size     bigint NOT NULL,
	received bigint NOT NULL,
	state    bigint NOT NULL, -- 0 waiting, 1 parked, 2 refused, 3 delivered, 4 superseded, 5 discarded, 6 kept, 7 accepted
	ord      bigint NOT NULL, -- its place in the lane
	changed  bigint NOT NULL,
	status   bytea NOT NULL   -- JSON
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX webhook_lane     ON {schema}.webhook (lane, seq);
CREATE INDEX webhook_waiting  ON {schema}.webhook (lane, ord) WHERE state = 0;
CREATE INDEX webhook_held     ON {schema}.webhook (seq) WHERE state IN (1, 2);
CREATE INDEX webhook_finished ON {schema}.webhook (changed, seq) WHERE state > 2;
CREATE INDEX webhook_refused  ON {schema}.webhook (digest) WHERE state = 2;

CREATE TABLE {schema}.content ( -- written once
	seq    bigint PRIMARY KEY,
	header bytea NOT NULL,
	body   bytea NOT NULL
) WITH (toast_tuple_target = 8160);
ALTER TABLE {schema}.content ALTER body SET STORAGE EXTERNAL; -- compressing costs more than it saves

CREATE TABLE {schema}.snapshot ( -- each tenant's last, for entitlements
	lane     bytea PRIMARY KEY,
	seq      bigint NOT NULL,
	uuid     bytea NOT NULL,
	received bigint NOT NULL,
	name     bytea NOT NULL,
	features bytea NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE {schema}.seen_id ( -- signed webhook-ids of the last 15 minutes
	lane   bytea NOT NULL,
	id     bytea NOT NULL,
	digest bytea NOT NULL,
	seq    bigint NOT NULL,
	at     bigint NOT NULL,
	uuid   bytea NOT NULL,
	PRIMARY KEY (lane, id, digest)
);
CREATE INDEX seen_id_at ON {schema}.seen_id (at);

CREATE TABLE {schema}.pause (
	key      bytea PRIMARY KEY,
	receiver bytea NOT NULL,
	platform bytea NOT NULL,
	tenant   bytea NOT NULL,
	since    bigint NOT NULL
);

CREATE TABLE {schema}.action ( -- what people did
	id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at     bigint NOT NULL,
	entry  bytea NOT NULL   -- JSON
);
CREATE INDEX action_at ON {schema}.action (at);

CREATE SEQUENCE {schema}.number CACHE 1;
