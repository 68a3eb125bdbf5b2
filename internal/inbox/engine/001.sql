-- compatible: 1
-- The tables of the inbox, for both engines; 001.sql of each engine adds what is special to it. {int}, {text}, {bytes} and {json} are
-- the engine's types, {number} is an {int} that has one of the numbers of this inbox, {empty} is a value without bytes, {keyed} stands behind a table that is found by its key alone, {waiting} and {finished}
-- behind a column are conditions, see package state.
--
-- Codes and names are text; usher refuses a code of more than 255 bytes, or with a zero character. Bodies, headers and digests are
-- bytes. Times are microseconds since 1970. No column but features is NULL: an empty value means "none", and a time that never comes is
-- {never}.

-- Which migrations have run, and the version down to which an older usher still starts on these tables.
CREATE TABLE {schema}.schema_version (
	version    {int} NOT NULL,
	compatible {int} NOT NULL,
	views      {int} NOT NULL DEFAULT 0 -- of views.sql, on PostgreSQL
);
INSERT INTO {schema}.schema_version VALUES (0, 0, 0);

-- The one line of numbers. Who takes some holds the row until the commit, so numbers are in the order of commits: whoever has read all
-- that there is up to a number needs to ask for higher ones only.
CREATE TABLE {schema}.number (
	last {int} NOT NULL,
	base {int} NOT NULL, -- the last one before those of the transaction that took some last
	home {text} NOT NULL -- where they were taken: see {home}
);
INSERT INTO {schema}.number VALUES (0, 0, '');

-- An era has the numbers above since that were taken at one home, up to the since of the next era. Cursors and marks name their era: one
-- whose number is higher than its era went, as the database has it now, has seen what a failover or a restore has lost.
CREATE TABLE {schema}.era (
	since {int} PRIMARY KEY,
	token {int} NOT NULL -- by chance, so that no other inbox has it
);
INSERT INTO {schema}.era VALUES (-1, 0);

-- A lane is the queue of one tenant. The transaction that has locked its row decides about the lane. A lane is never deleted.
CREATE TABLE {schema}.lane (
	tenant        {text} NOT NULL,
	platform      {text} NOT NULL,
	event_type    {text} NOT NULL, -- only if there is no tenant. All three empty: the lane of invalid webhooks whose tenant is not certain
	receiver      {text} NOT NULL DEFAULT '', -- the name of the receiver that takes its webhooks; empty: none does

	-- What dedup compares with.
	tail          {number} NOT NULL DEFAULT 0, -- the number of the webhook that was taken in last
	tail_id       {text} NOT NULL DEFAULT '',
	tail_digest   {bytes} NOT NULL DEFAULT {empty}, -- empty: no webhook counts as a copy of the tail
	held_at       {int} NOT NULL DEFAULT 0, -- when the receiver accepted the tail; 0: it waits, or nobody knows

	-- How many webhooks are in the lane.
	waiting       {int} NOT NULL DEFAULT 0,
	parked        {int} NOT NULL DEFAULT 0,
	invalid       {int} NOT NULL DEFAULT 0,
	bytes         {int} NOT NULL DEFAULT 0, -- of the webhooks that wait or are parked

	-- When the lane may be tried.
	waiting_since {int} NOT NULL DEFAULT {never}, -- when the first of the waiting webhooks came
	failures      {int} NOT NULL DEFAULT 0, -- tries of the first waiting webhook that failed in a row
	failing_since {int} NOT NULL DEFAULT 0, -- since when the tries of all its webhooks have failed; 0: the last one was accepted
	not_before    {int} NOT NULL DEFAULT 0, -- no try before this time: a Retry-After, or an erasure that waits
	due           {int} NOT NULL DEFAULT {never}, -- without an owner: when the lane may be tried; with one: when its lease ends

	-- Which process delivers it.
	owner         {bytes} NOT NULL DEFAULT {empty}, -- the process that has the lease
	leased        {number} NOT NULL DEFAULT 0, -- the webhook that it delivers
	token         {int} NOT NULL DEFAULT 0, -- counts leases, so that a late outcome of a former one is recognised

	-- The number and the time of whatever came last for it: taken in, a copy, or invalid; or of its erasure.
	last          {number} NOT NULL DEFAULT 0,
	last_at       {int} NOT NULL DEFAULT 0,
	erased        {int} NOT NULL DEFAULT 0, -- when somebody erased the tenant, of whom nothing was taken in since; 0: nobody has
	PRIMARY KEY (tenant, platform, event_type)
) {keyed};
CREATE INDEX lane_fresh  ON {schema}.lane (receiver, due) WHERE due < {never} AND failures = 0;
CREATE INDEX lane_failed ON {schema}.lane (receiver, due) WHERE due < {never} AND failures > 0;
CREATE INDEX lane_parked ON {schema}.lane (receiver) WHERE due = {never} AND parked > 0;

-- A webhook without its content: this row is updated, so it is small.
CREATE TABLE {schema}.webhook (
	seq        {number} PRIMARY KEY, -- the id that people type; it orders the webhooks of a lane
	uuid       {text} NOT NULL, -- the webhook-id that the receiver gets
	tenant     {text} NOT NULL, -- this and the next two name its lane
	platform   {text} NOT NULL,
	event_type {text} NOT NULL,
	type       {text} NOT NULL,
	snapshot   {int} NOT NULL, -- 1: it has the complete state of its tenant
	digest     {bytes} NOT NULL, -- SHA-256 of the body
	size       {int} NOT NULL,
	received   {int} NOT NULL,
	state      {int} NOT NULL, -- its number in package state
	rank       {number} NOT NULL, -- seq; if it is invalid: the number that its last copy took
	changed    {int} NOT NULL, -- when it came into its state; if it is invalid: when its last copy came
	why        {text} NOT NULL, -- the reason for its state, where there is one to tell
	source     {text} NOT NULL DEFAULT '', -- who made it, if no sender did
	record     {text} NOT NULL -- JSON of lane.Record: the tries, or the faults
);
CREATE INDEX webhook_lane      ON {schema}.webhook (tenant, platform, event_type, seq);
CREATE INDEX webhook_taken     ON {schema}.webhook (tenant, platform, event_type, seq) WHERE state {taken} AND snapshot = 1;
CREATE INDEX webhook_waiting   ON {schema}.webhook (tenant, platform, event_type, seq) WHERE state {waiting};
CREATE INDEX webhook_open      ON {schema}.webhook (tenant, platform, event_type) WHERE state {attention};
CREATE INDEX webhook_attention ON {schema}.webhook (seq) WHERE state {attention};
CREATE INDEX webhook_finished  ON {schema}.webhook (changed, seq, size) WHERE state {finished};
CREATE INDEX webhook_invalid   ON {schema}.webhook (digest) WHERE state {invalid};

-- The content of a webhook, written once.
CREATE TABLE {schema}.content (
	seq    {number} PRIMARY KEY,
	header {bytes} NOT NULL,
	body   {bytes} NOT NULL
);

-- The last snapshot of each tenant, for entitlements and for programs that follow the changes: seq is its number in them, too.
CREATE TABLE {schema}.snapshot (
	tenant    {text} NOT NULL,
	platform  {text} NOT NULL,
	seq       {number} NOT NULL,
	uuid      {text} NOT NULL,
	received  {int} NOT NULL,
	name      {text} NOT NULL,
	features  {json}, -- NULL: they can't be read
	tenant_id {text} NOT NULL DEFAULT '', -- the billing service's id of the tenant; empty: the webhook had none
	change    {bytes} NOT NULL DEFAULT {empty}, -- a digest of what payload.change said
	source    {text} NOT NULL DEFAULT '', -- as that of its webhook
	erased    {int} NOT NULL DEFAULT 0, -- 1: somebody has erased the tenant, and seq is the number of that
	PRIMARY KEY (tenant, platform)
) {keyed};
CREATE UNIQUE INDEX snapshot_seq ON {schema}.snapshot (seq);
CREATE INDEX snapshot_unknown ON {schema}.snapshot (received) WHERE features IS NULL AND erased = 0;
CREATE INDEX snapshot_id ON {schema}.snapshot (platform, tenant_id) WHERE tenant_id <> '';

-- When each receiver last accepted a webhook: as of a tenth of a second before at most.
CREATE TABLE {schema}.receiver (
	name     {text} PRIMARY KEY,
	accepted {int} NOT NULL
) {keyed};

-- What people have paused: a receiver, a tenant, or, if all three are empty, all deliveries.
CREATE TABLE {schema}.pause (
	receiver {text} NOT NULL,
	platform {text} NOT NULL,
	tenant   {text} NOT NULL,
	since    {int} NOT NULL,
	until    {int} NOT NULL, -- when it ends by itself; {never}: somebody has to resume
	copied   {int} NOT NULL DEFAULT 0, -- when a backup made this inbox, which begins paused; 0: a person has paused
	PRIMARY KEY (receiver, platform, tenant)
) {keyed};

-- What people did.
CREATE TABLE {schema}.action (
	id       {counter},
	at       {int} NOT NULL,
	who      {text} NOT NULL,
	what     {text} NOT NULL,
	about    {text} NOT NULL,
	webhooks {int} NOT NULL -- how many it touched
);
CREATE INDEX action_at ON {schema}.action (at);

-- When usher may have missed webhooks, and when a gate was last up and ready. It has one row; 0: none was.
CREATE TABLE {schema}.missed (
	began    {int} NOT NULL,
	ended    {int} NOT NULL,
	webhooks {int} NOT NULL, -- how many got a 5xx
	gate_up  {int} NOT NULL
);
INSERT INTO {schema}.missed VALUES (0, 0, 0, 0);

-- What was wrong, from when to when; see history.go.
CREATE TABLE {schema}.trouble (
	about    {text} NOT NULL, -- its kind, and what it is about
	replica  {text} NOT NULL, -- who has found it last; empty: it is wrong for all who share the inbox
	began    {int} NOT NULL,
	noticed  {int} NOT NULL,
	seen     {int} NOT NULL, -- when somebody last found it
	ended    {int} NOT NULL DEFAULT 0, -- 0: it is not over
	claimed  {int} NOT NULL DEFAULT 0, -- when a replica last began to say something of it
	told     {int} NOT NULL DEFAULT 0, -- 1: it was said; 2: that it is over, too
	named    {text} NOT NULL, -- the tenants that it names
	words    {text} NOT NULL, -- JSON of inbox.TroubleWords
	PRIMARY KEY (about, noticed)
);
CREATE UNIQUE INDEX trouble_open ON {schema}.trouble (about) WHERE ended = 0;
CREATE INDEX trouble_ended ON {schema}.trouble (ended);

-- What was compared with the billing service. It has one row; 0: never, or none.
CREATE TABLE {schema}.compared (
	newest     {int} NOT NULL, -- when the newest event of the last complete reading of the webhook log was made, by the service's clock
	oldest     {int} NOT NULL, -- the oldest event that it left
	until      {int} NOT NULL, -- a replica reads the log, until then at most
	reconciled {int} NOT NULL  -- when 'usher reconcile' has last compared a whole list
);
INSERT INTO {schema}.compared VALUES (0, 0, 0, 0);
