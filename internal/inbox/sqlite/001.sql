-- The tables of the inbox.
--
-- Bytes that others wrote (codes, names, headers, bodies) are BLOBs, never text: a zero byte, invalid UTF-8 or a code of a
-- megabyte must not fail a statement. Times are microseconds since 1970. No column is NULL: an empty value means "none",
-- and a time that never comes is {never}.

-- The codes of all platforms. Other tables have only the hash of a code.
CREATE TABLE platform (
	hash BLOB PRIMARY KEY,
	code BLOB NOT NULL
) WITHOUT ROWID;

-- A lane is the queue of one tenant. The transaction that has locked its row decides about the lane. A lane is never deleted.
CREATE TABLE lane (
	key           BLOB PRIMARY KEY, -- a hash of the tenant (or, without a tenant, of the event's type), and one of the platform
	platform      BLOB NOT NULL, -- the platform's hash, which is the second half of the key
	tenant        BLOB NOT NULL,
	event_type    BLOB NOT NULL, -- only if there is no tenant
	tail          INTEGER NOT NULL DEFAULT 0, -- the number of the webhook that was taken in last
	details       BLOB NOT NULL DEFAULT x'', -- packed: all fields that no statement asks for, see packDetails in store/rows.go

	-- How many webhooks are in the lane.
	waiting       INTEGER NOT NULL DEFAULT 0,
	resent        INTEGER NOT NULL DEFAULT 0, -- how many of the waiting webhooks somebody has sent again by hand
	parked        INTEGER NOT NULL DEFAULT 0,
	refused       INTEGER NOT NULL DEFAULT 0,
	bytes         INTEGER NOT NULL DEFAULT 0, -- of the webhooks that wait or are parked

	-- When the lane may be tried, and which process delivers it.
	waiting_since INTEGER NOT NULL DEFAULT {never}, -- when the first of the waiting webhooks came
	last_result   INTEGER NOT NULL DEFAULT 0, -- of the first webhook's last try: 0 not failed, 1 failed, 2 missed (the receiver seems to be down)
	last_try      INTEGER NOT NULL DEFAULT 0,
	not_before    INTEGER NOT NULL DEFAULT 0, -- no try before this time: a Retry-After, or an erasure that waits
	paused        INTEGER NOT NULL DEFAULT 0,
	due           INTEGER NOT NULL DEFAULT {never}, -- without an owner: when the lane may be tried; with one: when its lease ends
	owner         BLOB NOT NULL DEFAULT x'' -- the process that has the lease
) WITHOUT ROWID;
CREATE INDEX lane_due ON lane (platform, last_result, due, waiting, parked, bytes, waiting_since) WHERE bytes > 0; -- the last four are for figures
CREATE INDEX lane_missed ON lane (platform, last_try) WHERE last_result = 2 AND due < {never};
CREATE INDEX lane_waiting_since ON lane (platform, waiting_since) WHERE last_result = 2 AND due < {never};
CREATE INDEX lane_failed ON lane (waiting_since) WHERE last_result > 0;

-- A webhook without its content: this row is updated, so it is small.
CREATE TABLE webhook (
	seq        INTEGER PRIMARY KEY, -- the id that people type; it orders the webhooks of a lane
	uuid       BLOB NOT NULL, -- the webhook-id that the receiver gets
	lane       BLOB NOT NULL, -- empty: it was refused, and its tenant is not certain
	type       BLOB NOT NULL,
	snapshot   INTEGER NOT NULL, -- 1: it has the complete state of its tenant
	digest     BLOB NOT NULL, -- SHA-256 of the body
	size       INTEGER NOT NULL,
	received   INTEGER NOT NULL,
	state      INTEGER NOT NULL, -- 0 waiting, 1 parked, 2 refused, 3 delivered, 4 superseded, 5 discarded, 6 kept, 7 accepted
	lane_order INTEGER NOT NULL, -- its place in the lane: seq, or a negative number if somebody has sent it again by hand
	changed    INTEGER NOT NULL, -- when it came into its state
	status     BLOB NOT NULL -- JSON of store.Status: the attempts, and why it is in its state
);
CREATE INDEX webhook_lane      ON webhook (lane, seq);
CREATE INDEX webhook_waiting   ON webhook (lane, lane_order) WHERE state = 0;
CREATE INDEX webhook_attention ON webhook (seq) WHERE state IN (1, 2);
CREATE INDEX webhook_finished  ON webhook (changed, seq) WHERE state > 2;
CREATE INDEX webhook_refused   ON webhook (digest) WHERE state = 2;

-- The content of a webhook, written once.
CREATE TABLE content (
	seq    INTEGER PRIMARY KEY,
	header BLOB NOT NULL,
	body   BLOB NOT NULL
);

-- The last snapshot of each tenant, for entitlements.
CREATE TABLE snapshot (
	lane     BLOB PRIMARY KEY,
	seq      INTEGER NOT NULL,
	uuid     BLOB NOT NULL,
	received INTEGER NOT NULL,
	name     BLOB NOT NULL,
	features BLOB NOT NULL
) WITHOUT ROWID;

-- The signed webhook-ids of the last 15 minutes, each with the digest of the body that it came with.
CREATE TABLE seen_id (
	lane   BLOB NOT NULL,
	id     BLOB NOT NULL, -- SHA-256 of the webhook-id
	digest BLOB NOT NULL,
	seq    INTEGER NOT NULL,
	at     INTEGER NOT NULL,
	uuid   BLOB NOT NULL,
	PRIMARY KEY (lane, id, digest)
) WITHOUT ROWID;
CREATE INDEX seen_id_at ON seen_id (at);

-- What people have paused: a receiver, a tenant, or, if all three are empty, all deliveries.
CREATE TABLE pause (
	key      BLOB PRIMARY KEY,
	receiver BLOB NOT NULL,
	platform BLOB NOT NULL,
	tenant   BLOB NOT NULL,
	since    INTEGER NOT NULL
) WITHOUT ROWID;

-- What people did.
CREATE TABLE action (
	id     INTEGER PRIMARY KEY AUTOINCREMENT,
	at     INTEGER NOT NULL,
	entry  BLOB NOT NULL -- JSON of store.Action
);
CREATE INDEX action_at ON action (at);

-- The last number that a webhook got.
CREATE TABLE number (last INTEGER NOT NULL);
INSERT INTO number VALUES (0);
