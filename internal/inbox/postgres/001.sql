-- The tables of the inbox.
--
-- Bytes that others wrote (codes, names, headers, bodies) are bytea, never text: a zero byte, invalid UTF-8 or a code of a
-- megabyte must not fail a statement. Times are microseconds since 1970. No column is NULL: an empty value means "none",
-- and a time that never comes is {never}.

-- The codes of all platforms. Other tables have only the hash of a code.
CREATE TABLE {schema}.platform (
	hash bytea PRIMARY KEY,
	code bytea NOT NULL
);

-- A lane is the queue of one tenant. The transaction that has locked its row decides about the lane. A lane is never deleted.
CREATE TABLE {schema}.lane (
	key           bytea PRIMARY KEY, -- a hash of the tenant (or, without a tenant, of the event's type), and one of the platform
	platform      bytea NOT NULL, -- the platform's hash, which is the second half of the key
	tenant        bytea NOT NULL,
	event_type    bytea NOT NULL, -- only if there is no tenant
	tail          bigint NOT NULL DEFAULT 0, -- the number of the webhook that was taken in last
	details       bytea NOT NULL DEFAULT '', -- packed: all fields that no statement asks for, see packDetails in store/rows.go

	-- How many webhooks are in the lane.
	waiting       bigint NOT NULL DEFAULT 0,
	resent        bigint NOT NULL DEFAULT 0, -- how many of the waiting webhooks somebody has sent again by hand
	parked        bigint NOT NULL DEFAULT 0,
	refused       bigint NOT NULL DEFAULT 0,
	bytes         bigint NOT NULL DEFAULT 0, -- of the webhooks that wait or are parked

	-- When the lane may be tried, and which process delivers it.
	waiting_since bigint NOT NULL DEFAULT {never}, -- when the first of the waiting webhooks came
	last_result   bigint NOT NULL DEFAULT 0, -- of the first webhook's last try: 0 not failed, 1 failed, 2 missed (the receiver seems to be down)
	last_try      bigint NOT NULL DEFAULT 0,
	not_before    bigint NOT NULL DEFAULT 0, -- no try before this time: a Retry-After, or an erasure that waits
	paused        bigint NOT NULL DEFAULT 0,
	due           bigint NOT NULL DEFAULT {never}, -- without an owner: when the lane may be tried; with one: when its lease ends
	owner         bytea NOT NULL DEFAULT '' -- the process that has the lease
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lane_due ON {schema}.lane (platform, last_result, due) WHERE bytes > 0; -- also for figures
CREATE INDEX lane_missed ON {schema}.lane (platform, last_try) WHERE last_result = 2 AND due < {never};
CREATE INDEX lane_waiting_since ON {schema}.lane (platform, waiting_since) WHERE last_result = 2 AND due < {never};
CREATE INDEX lane_failed ON {schema}.lane (waiting_since) WHERE last_result > 0;

-- A webhook without its content: this row is updated, so it is small.
CREATE TABLE {schema}.webhook (
	seq        bigint PRIMARY KEY, -- the id that people type; it orders the webhooks of a lane
	uuid       bytea NOT NULL, -- the webhook-id that the receiver gets
	lane       bytea NOT NULL, -- empty: it was refused, and its tenant is not certain
	type       bytea NOT NULL,
	snapshot   bigint NOT NULL, -- 1: it has the complete state of its tenant
	digest     bytea NOT NULL, -- SHA-256 of the body
	size       bigint NOT NULL,
	received   bigint NOT NULL,
	state      bigint NOT NULL, -- 0 waiting, 1 parked, 2 refused, 3 delivered, 4 superseded, 5 discarded, 6 kept, 7 accepted
	lane_order bigint NOT NULL, -- its place in the lane: seq, or a negative number if somebody has sent it again by hand
	changed    bigint NOT NULL, -- when it came into its state
	status     bytea NOT NULL -- JSON of store.Status: the attempts, and why it is in its state
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX webhook_lane      ON {schema}.webhook (lane, seq);
CREATE INDEX webhook_waiting   ON {schema}.webhook (lane, lane_order) WHERE state = 0;
CREATE INDEX webhook_attention ON {schema}.webhook (seq) WHERE state IN (1, 2);
CREATE INDEX webhook_finished  ON {schema}.webhook (changed, seq) WHERE state > 2;
CREATE INDEX webhook_refused   ON {schema}.webhook (digest) WHERE state = 2;

-- The content of a webhook, written once.
CREATE TABLE {schema}.content (
	seq    bigint PRIMARY KEY,
	header bytea NOT NULL,
	body   bytea NOT NULL
) WITH (toast_tuple_target = 8160);
ALTER TABLE {schema}.content ALTER body SET STORAGE EXTERNAL; -- compressing costs more than it saves

-- The last snapshot of each tenant, for entitlements.
CREATE TABLE {schema}.snapshot (
	lane     bytea PRIMARY KEY,
	seq      bigint NOT NULL,
	uuid     bytea NOT NULL,
	received bigint NOT NULL,
	name     bytea NOT NULL,
	features bytea NOT NULL
) WITH (fillfactor = 80);

-- The signed webhook-ids of the last 15 minutes, each with the digest of the body that it came with.
CREATE TABLE {schema}.seen_id (
	lane   bytea NOT NULL,
	id     bytea NOT NULL, -- SHA-256 of the webhook-id
	digest bytea NOT NULL,
	seq    bigint NOT NULL,
	at     bigint NOT NULL,
	uuid   bytea NOT NULL,
	PRIMARY KEY (lane, id, digest)
);
CREATE INDEX seen_id_at ON {schema}.seen_id (at);

-- What people have paused: a receiver, a tenant, or, if all three are empty, all deliveries.
CREATE TABLE {schema}.pause (
	key      bytea PRIMARY KEY,
	receiver bytea NOT NULL,
	platform bytea NOT NULL,
	tenant   bytea NOT NULL,
	since    bigint NOT NULL
);

-- What people did.
CREATE TABLE {schema}.action (
	id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at     bigint NOT NULL,
	entry  bytea NOT NULL -- JSON of store.Action
);
CREATE INDEX action_at ON {schema}.action (at);

-- The numbers of webhooks.
CREATE SEQUENCE {schema}.number CACHE 1;
