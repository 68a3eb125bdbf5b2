-- compatible: 1
-- The tables of the inbox, for both engines; 001.sql of each engine adds what is special to it. {int}, {text}, {bytes} and {json} are
-- the engine's types, {empty} is a value without bytes, {keyed} stands behind a table that is found by its key alone, {waiting} and {finished}
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

-- A lane is the queue of one tenant. The transaction that has locked its row decides about the lane. A lane is never deleted.
CREATE TABLE {schema}.lane (
	tenant        {text} NOT NULL,
	platform      {text} NOT NULL,
	event_type    {text} NOT NULL, -- only if there is no tenant
	receiver      {text} NOT NULL DEFAULT '', -- the name of the receiver that takes its webhooks; empty: none does

	-- What dedup compares with.
	tail          {int} NOT NULL DEFAULT 0, -- the number of the webhook that was taken in last
	tail_id       {text} NOT NULL DEFAULT '',
	tail_digest   {bytes} NOT NULL DEFAULT {empty}, -- empty: no webhook counts as a copy of the tail
	held          {bytes} NOT NULL DEFAULT {empty}, -- the digest of what the receiver holds for sure
	held_at       {int} NOT NULL DEFAULT 0,
	held_by       {text} NOT NULL DEFAULT '',
	held_id       {text} NOT NULL DEFAULT '',

	-- How many webhooks are in the lane.
	waiting       {int} NOT NULL DEFAULT 0,
	parked        {int} NOT NULL DEFAULT 0,
	invalid       {int} NOT NULL DEFAULT 0,
	bytes         {int} NOT NULL DEFAULT 0, -- of the webhooks that wait or are parked

	-- When the lane may be tried.
	waiting_since {int} NOT NULL DEFAULT {never}, -- when the first of the waiting webhooks came
	last_result   {int} NOT NULL DEFAULT 0, -- of the first webhook's last try: 0 not failed, 1 failed, 2 the receiver was down
	failures      {int} NOT NULL DEFAULT 0, -- tries that failed in a row
	failing_since {int} NOT NULL DEFAULT 0, -- since when the tries of all its webhooks have failed; 0: the last one was accepted
	last_try      {int} NOT NULL DEFAULT 0, -- when it began
	not_before    {int} NOT NULL DEFAULT 0, -- no try before this time: a Retry-After, or an erasure that waits
	paused        {int} NOT NULL DEFAULT 0,
	due           {int} NOT NULL DEFAULT {never}, -- without an owner: when the lane may be tried; with one: when its lease ends

	-- Which process delivers it.
	owner         {bytes} NOT NULL DEFAULT {empty}, -- the process that has the lease
	leased        {int} NOT NULL DEFAULT 0, -- the webhook that it delivers
	token         {int} NOT NULL DEFAULT 0, -- counts leases, so that a late outcome of a former one is recognised

	-- The number and the time of whatever came last for it: taken in, a copy, invalid, or answered with 5xx; or of its erasure.
	last          {int} NOT NULL DEFAULT 0,
	last_at       {int} NOT NULL DEFAULT 0,
	erased        {int} NOT NULL DEFAULT 0, -- when somebody erased the tenant, of whom nothing was taken in since; 0: nobody has
	PRIMARY KEY (tenant, platform, event_type)
) {keyed};
CREATE INDEX lane_last_try ON {schema}.lane (receiver, last_try, last_result) WHERE last_result > 0 AND due < {never};
CREATE INDEX lane_failed ON {schema}.lane (waiting_since) WHERE last_result > 0;

-- A webhook without its content: this row is updated, so it is small.
CREATE TABLE {schema}.webhook (
	seq        {int} PRIMARY KEY, -- the id that people type; it orders the webhooks of a lane
	uuid       {text} NOT NULL, -- the webhook-id that the receiver gets
	tenant     {text} NOT NULL, -- this and the next two name its lane; all empty: it is invalid, and its tenant is not certain
	platform   {text} NOT NULL,
	event_type {text} NOT NULL,
	type       {text} NOT NULL,
	snapshot   {int} NOT NULL, -- 1: it has the complete state of its tenant
	digest     {bytes} NOT NULL, -- SHA-256 of the body
	size       {int} NOT NULL,
	received   {int} NOT NULL,
	state      {int} NOT NULL, -- its number in package state
	rank       {int} NOT NULL, -- seq; if it is invalid: the number that its last copy took
	changed    {int} NOT NULL, -- when it came into its state; if it is invalid: when its last copy came
	why        {text} NOT NULL, -- the reason for its state, where there is one to tell
	source     {text} NOT NULL DEFAULT '', -- 'reconcile' if usher made it; else a sender did
	record     {text} NOT NULL -- JSON of lane.Record: the tries, or the faults
);
CREATE INDEX webhook_lane      ON {schema}.webhook (tenant, platform, event_type, seq);
CREATE INDEX webhook_taken     ON {schema}.webhook (tenant, platform, event_type, seq) WHERE state {taken} AND snapshot = 1;
CREATE INDEX webhook_waiting   ON {schema}.webhook (tenant, platform, event_type, seq) WHERE state {waiting};
CREATE INDEX webhook_parked    ON {schema}.webhook (tenant, platform, event_type) WHERE state {parked} AND snapshot = 1;
CREATE INDEX webhook_attention ON {schema}.webhook (seq) WHERE state {attention};
CREATE INDEX webhook_finished  ON {schema}.webhook (changed, seq, size) WHERE state {finished};
CREATE INDEX webhook_invalid   ON {schema}.webhook (digest) WHERE state {invalid};
CREATE INDEX webhook_lane_invalid ON {schema}.webhook (tenant, platform, event_type, seq) WHERE state {invalid};

-- The content of a webhook, written once.
CREATE TABLE {schema}.content (
	seq    {int} PRIMARY KEY,
	header {bytes} NOT NULL,
	body   {bytes} NOT NULL
);

-- The last snapshot of each tenant, for entitlements.
CREATE TABLE {schema}.snapshot (
	tenant   {text} NOT NULL,
	platform {text} NOT NULL,
	seq      {int} NOT NULL,
	uuid     {text} NOT NULL,
	received {int} NOT NULL,
	name     {text} NOT NULL,
	features {json}, -- NULL: they can't be read
	tenant_id {text} NOT NULL DEFAULT '', -- the billing service's id of the tenant; empty: the webhook had none
	change    {bytes} NOT NULL DEFAULT {empty}, -- a digest of what payload.change said
	source    {text} NOT NULL DEFAULT '', -- as that of its webhook
	PRIMARY KEY (tenant, platform)
) {keyed};

CREATE INDEX snapshot_unknown ON {schema}.snapshot (received) WHERE features IS NULL;
CREATE INDEX snapshot_id ON {schema}.snapshot (platform, tenant_id) WHERE tenant_id <> '';

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

-- The last comparison with the billing service ('usher reconcile'). It has one row.
CREATE TABLE {schema}.reconcile (
	id        {text} NOT NULL,
	mark      {int} NOT NULL, -- one of the numbers that webhooks get: what came for a lane since the run began has a higher one
	began     {int} NOT NULL,
	action    {int} NOT NULL,
	completed {int} NOT NULL -- when a whole list was last compared; 0: never
);
INSERT INTO {schema}.reconcile VALUES ('', 0, 0, 0, 0);

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

-- When a gate was last up and ready; 0: none was yet. It has one row.
CREATE TABLE {schema}.gate_up (at {int} NOT NULL);
INSERT INTO {schema}.gate_up VALUES (0);

-- When usher may have missed webhooks: from when to when, and how many got a 5xx. Mostly it has one row at most.
CREATE TABLE {schema}.missed (
	began    {int} NOT NULL,
	ended    {int} NOT NULL,
	webhooks {int} NOT NULL
);

-- What was told to programs that keep a copy: each tenant with the number of its last telling. See changes.go.
CREATE TABLE {schema}.change (
	tenant   {text} NOT NULL,
	platform {text} NOT NULL,
	number   {int} NOT NULL,
	seq      {int} NOT NULL, -- the snapshot that was told; 0: that the tenant was erased
	PRIMARY KEY (tenant, platform)
) {keyed};
CREATE UNIQUE INDEX change_number ON {schema}.change (number);

-- Each telling, by its last number, with a token by chance. Those before the last week are deleted, but for the newest of them.
CREATE TABLE {schema}.told (
	number {int} PRIMARY KEY,
	token  {int} NOT NULL,
	at     {int} NOT NULL
);

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

-- How far the billing service's webhook log was read. It has one row.
CREATE TABLE {schema}.catch_up (
	newest {int} NOT NULL, -- when the newest event of the last complete run was made, by the service's clock; 0: none was complete
	oldest {int} NOT NULL, -- the oldest event that it left; 0: none
	until  {int} NOT NULL  -- a replica reads it, until then at most
);
INSERT INTO {schema}.catch_up VALUES (0, 0, 0);
