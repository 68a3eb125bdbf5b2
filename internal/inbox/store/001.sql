-- The tables of the inbox, for both engines; 001.sql of each engine adds what is special to it. {int} and {bytes} are the engine's
-- types, {empty} is a value without bytes, {keyed} stands behind a table that is found by its key alone.
--
-- Bytes that others wrote (codes, names, headers, bodies) are {bytes}, never text: a zero byte, invalid UTF-8 or a code of a
-- megabyte must not fail a statement. Times are microseconds since 1970. No column is NULL: an empty value means "none",
-- and a time that never comes is {never}.

-- The codes of all platforms. Other tables have only the hash of a code.
CREATE TABLE {schema}.platform (
	hash {bytes} PRIMARY KEY,
	code {bytes} NOT NULL
) {keyed};

-- A lane is the queue of one tenant. The transaction that has locked its row decides about the lane. A lane is never deleted.
CREATE TABLE {schema}.lane (
	key           {bytes} PRIMARY KEY, -- a hash of the tenant (or, without a tenant, of the event's type), and one of the platform
	platform      {bytes} NOT NULL, -- the platform's hash, which is the second half of the key
	tenant        {bytes} NOT NULL,
	event_type    {bytes} NOT NULL, -- only if there is no tenant
	tail          {int} NOT NULL DEFAULT 0, -- the number of the webhook that was taken in last
	details       {bytes} NOT NULL DEFAULT {empty}, -- packed: all fields that no statement asks for, see packDetails in store/rows.go

	-- How many webhooks are in the lane.
	waiting       {int} NOT NULL DEFAULT 0,
	resent        {int} NOT NULL DEFAULT 0, -- how many of the waiting webhooks somebody has sent again by hand
	parked        {int} NOT NULL DEFAULT 0,
	refused       {int} NOT NULL DEFAULT 0,
	bytes         {int} NOT NULL DEFAULT 0, -- of the webhooks that wait or are parked

	-- When the lane may be tried, and which process delivers it.
	waiting_since {int} NOT NULL DEFAULT {never}, -- when the first of the waiting webhooks came
	last_result   {int} NOT NULL DEFAULT 0, -- of the first webhook's last try: 0 not failed, 1 failed, 2 missed (the receiver seems to be down)
	last_try      {int} NOT NULL DEFAULT 0,
	not_before    {int} NOT NULL DEFAULT 0, -- no try before this time: a Retry-After, or an erasure that waits
	paused        {int} NOT NULL DEFAULT 0,
	due           {int} NOT NULL DEFAULT {never}, -- without an owner: when the lane may be tried; with one: when its lease ends
	owner         {bytes} NOT NULL DEFAULT {empty} -- the process that has the lease
) {keyed};
CREATE INDEX lane_missed ON {schema}.lane (platform, last_try) WHERE last_result = 2 AND due < {never};
CREATE INDEX lane_waiting_since ON {schema}.lane (platform, waiting_since) WHERE last_result = 2 AND due < {never};
CREATE INDEX lane_failed ON {schema}.lane (waiting_since) WHERE last_result > 0;

-- A webhook without its content: this row is updated, so it is small.
CREATE TABLE {schema}.webhook (
	seq        {int} PRIMARY KEY, -- the id that people type; it orders the webhooks of a lane
	uuid       {bytes} NOT NULL, -- the webhook-id that the receiver gets
	lane       {bytes} NOT NULL, -- empty: it was refused, and its tenant is not certain
	type       {bytes} NOT NULL,
	snapshot   {int} NOT NULL, -- 1: it has the complete state of its tenant
	digest     {bytes} NOT NULL, -- SHA-256 of the body
	size       {int} NOT NULL,
	received   {int} NOT NULL,
	state      {int} NOT NULL, -- 0 waiting, 1 parked, 2 refused, 3 delivered, 4 superseded, 5 discarded, 6 kept, 7 accepted
	lane_order {int} NOT NULL, -- its place in the lane: seq, or a negative number if somebody has sent it again by hand
	changed    {int} NOT NULL, -- when it came into its state
	status     {bytes} NOT NULL -- JSON of store.Status: the attempts, and why it is in its state
);
CREATE INDEX webhook_lane      ON {schema}.webhook (lane, seq);
CREATE INDEX webhook_waiting   ON {schema}.webhook (lane, lane_order) WHERE state = 0;
CREATE INDEX webhook_attention ON {schema}.webhook (seq) WHERE state IN (1, 2);
CREATE INDEX webhook_finished  ON {schema}.webhook (changed, seq) WHERE state > 2;
CREATE INDEX webhook_refused   ON {schema}.webhook (digest) WHERE state = 2;

-- The content of a webhook, written once.
CREATE TABLE {schema}.content (
	seq    {int} PRIMARY KEY,
	header {bytes} NOT NULL,
	body   {bytes} NOT NULL
);

-- The last snapshot of each tenant, for entitlements.
CREATE TABLE {schema}.snapshot (
	lane     {bytes} PRIMARY KEY,
	seq      {int} NOT NULL,
	uuid     {bytes} NOT NULL,
	received {int} NOT NULL,
	name     {bytes} NOT NULL,
	features {bytes} NOT NULL
) {keyed};

-- The signed webhook-ids of the last 15 minutes, each with the digest of the body that it came with.
CREATE TABLE {schema}.seen_id (
	lane   {bytes} NOT NULL,
	id     {bytes} NOT NULL, -- SHA-256 of the webhook-id
	digest {bytes} NOT NULL,
	seq    {int} NOT NULL,
	at     {int} NOT NULL,
	uuid   {bytes} NOT NULL,
	PRIMARY KEY (lane, id, digest)
) {keyed};
CREATE INDEX seen_id_at ON {schema}.seen_id (at);

-- What people have paused: a receiver, a tenant, or, if all three are empty, all deliveries.
CREATE TABLE {schema}.pause (
	key      {bytes} PRIMARY KEY,
	receiver {bytes} NOT NULL,
	platform {bytes} NOT NULL,
	tenant   {bytes} NOT NULL,
	since    {int} NOT NULL
) {keyed};

-- What people did.
CREATE TABLE {schema}.action (
	id     {counter},
	at     {int} NOT NULL,
	entry  {bytes} NOT NULL -- JSON of store.Action
);
CREATE INDEX action_at ON {schema}.action (at);
