-- The statements that differ from SQLite's; the others are in engine/statements.sql. If an argument is a slice, the statement gets an
-- array.

-- name: lane_add
INSERT INTO {schema}.lane (tenant, platform, event_type)
SELECT n.* FROM unnest($1::text[], $2::text[], $3::text[]) AS n (tenant, platform, event_type)
WHERE NOT EXISTS (SELECT 1 FROM {schema}.lane l WHERE l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type)
ORDER BY n.tenant COLLATE "C", n.platform COLLATE "C", n.event_type COLLATE "C" ON CONFLICT DO NOTHING RETURNING tenant

-- name: lane_lock
SELECT {lane} FROM unnest($1::text[], $2::text[], $3::text[]) AS n (tenant, platform, event_type)
JOIN {schema}.lane l ON l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type
ORDER BY l.tenant, l.platform, l.event_type FOR UPDATE OF l

-- name: touch
-- A write that changes nothing, to find out whether the database can be written.
UPDATE {schema}.schema_version SET version = version

-- name: lock_tables
-- As every write locks them.
LOCK TABLE {schema}.lane, {schema}.webhook, {schema}.content, {schema}.snapshot IN ROW EXCLUSIVE MODE

-- name: need_room
-- A write that needs new pages.
INSERT INTO {schema}.content SELECT -1, '', convert_to(string_agg(md5(n::text), ''), 'UTF8') FROM generate_series(1, 32768) AS n

-- name: take_numbers
SELECT nextval('{schema}.number'), 1::bigint FROM generate_series(1, $1::bigint)

-- name: next_waiting
-- 1 to 3 the lanes, 4 for each a webhook that does not count, 5 the size up to which the content is read, too.
SELECT w.* FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS n (tenant, platform, event_type, seq)
JOIN {schema}.lane l ON l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type CROSS JOIN LATERAL (
	SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.content c ON c.seq = w.seq AND w.size <= $5::bigint
	WHERE {of} AND w.state {waiting} AND w.seq <> n.seq ORDER BY w.seq LIMIT 1) w

-- name: snapshots
SELECT platform, tenant, seq, uuid, received, name, coalesce(features::text, ''), change, source FROM {schema}.snapshot WHERE tenant = $1::text

-- name: snapshots_of
-- 1 and 2 the tenants. It comes after the locks of their lanes.
SELECT s.platform, s.tenant, s.seq, s.uuid, s.received, s.name, coalesce(s.features::text, ''), s.change, s.source FROM unnest($1::text[], $2::text[]) AS n (tenant, platform)
JOIN {schema}.snapshot s ON s.tenant = n.tenant AND s.platform = n.platform

-- name: elsewhere
-- The other platforms on which the codes of these tenants (1, 2) are known. OFFSET 0 makes the server look each of them up: it has no
-- idea how many rows the arrays have, and would rather read whole tables.
SELECT n.tenant, n.platform, s.platform FROM unnest($1::text[], $2::text[]) AS n (tenant, platform)
CROSS JOIN LATERAL (SELECT platform FROM {schema}.snapshot WHERE tenant = n.tenant AND platform <> n.platform OFFSET 0) AS s

-- name: invalid_lock
-- Of copies that come through several replicas at once, one is stored. Lanes are locked before.
SELECT pg_advisory_xact_lock(k) FROM (SELECT DISTINCT hashtextextended('usher rejected {schema}' || encode(d, 'hex'), 0) AS k FROM unnest($1::bytea[]) AS u (d) ORDER BY 1) AS o

-- name: invalid_copies
SELECT {webhook} FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of} WHERE w.state {invalid} AND w.digest = ANY($1::bytea[]) FOR UPDATE OF w

-- name: lane_subtract_invalid
UPDATE {schema}.lane l SET invalid = greatest(l.invalid - n.count, 0)
FROM (SELECT tenant, platform, event_type, count(*) FROM unnest($1::text[], $2::text[], $3::text[]) AS u (tenant, platform, event_type) GROUP BY 1, 2, 3) n
WHERE l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type

-- name: sweep_lock
-- 1: this replica may delete. The lock ends with the transaction.
SELECT pg_try_advisory_xact_lock(hashtext('usher sweep {schema}'))::int::bigint

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: settings
SELECT set_config('search_path', 'pg_catalog, pg_temp', true), -- see safePath
	set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on'
		ELSE current_setting('synchronous_commit') END, true),
	set_config('client_min_messages', 'warning', true), -- a COMMIT that no standby has confirmed comes with a warning
	set_config('statement_timeout', '9000', true), set_config('lock_timeout', '2000', true), set_config('idle_in_transaction_session_timeout', '10000', true),
	-- The writer finds everything by its key. Without these the server would keep plans that it made while the tables were small,
	-- and read whole tables.
	set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true)

-- name: put
INSERT INTO {schema}.{table} ({columns}) SELECT {values} FROM unnest({arrays}) AS n ({columns})

-- name: save
UPDATE {schema}.{table} t SET {set values} FROM unnest({arrays}) AS n ({columns}) WHERE {key values}

-- name: number_raise
-- To this number at least, and to the highest that is in use.
SELECT setval('{schema}.number', greatest($1::bigint, (SELECT last_value FROM {schema}.number), (SELECT max(seq) FROM {schema}.webhook WHERE seq <= {largest}), 1))

-- name: numbers_behind
-- Raises the sequence if it is behind the tables: a logical replica, for one, gets no sequences. Only what an index knows: there may be
-- millions of lanes, and each looks at its own numbers.
SELECT setval('{schema}.number', used.number) FROM (
	SELECT greatest((SELECT max(seq) FROM {schema}.webhook WHERE seq <= {largest}), (SELECT max(mark) FROM {schema}.reconcile WHERE mark <= {largest})) AS number) AS used
WHERE used.number > (SELECT last_value FROM {schema}.number)

-- name: highest_last
-- The highest number that a lane has. It reads all lanes.
SELECT coalesce(max(last), 0) FROM {schema}.lane WHERE last <= {largest}

-- name: gate_up
-- Locked, so that of two gates that come up at once one finds the outage.
SELECT at FROM {schema}.gate_up FOR UPDATE

-- name: untold
-- The first and the last change that was not told, and whether this role may tell (1).
SELECT coalesce(min(id), 0), coalesce(max(id), 0), has_table_privilege('{schema}.told', 'INSERT')::int::bigint FROM {schema}.changed

-- name: confirm
-- Something whose COMMIT waits for standbys, and that a role may do which may only read.
SELECT pg_logical_emit_message(true, 'usher', '')::text

-- name: tell_lock
-- One process tells at a time, and no other waits for it. The lock ends when what was told is visible. tell is another statement, so that it
-- sees what the one before has told.
SELECT set_config('usher.tells', pg_try_advisory_xact_lock(hashtextextended('usher tell {schema}', 0))::text, true)

-- name: tell
-- Numbers so many changes (1), with a token (2), at a time (3). It returns the last number, and how many changes there were.
WITH gone AS (
	DELETE FROM {schema}.changed WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.changed WHERE current_setting('usher.tells') = 'true' LIMIT $1::bigint)) RETURNING tenant, platform
), numbered AS (
	SELECT g.tenant, g.platform, coalesce(s.seq, 0) AS seq, (SELECT max(number) FROM {schema}.told) + row_number() OVER () AS number
	FROM (SELECT DISTINCT tenant, platform FROM gone) g LEFT JOIN {schema}.snapshot s ON s.tenant = g.tenant AND s.platform = g.platform
), saved AS (
	INSERT INTO {schema}.change (tenant, platform, number, seq) SELECT tenant, platform, number, seq FROM numbered
	ON CONFLICT (tenant, platform) DO UPDATE SET number = excluded.number, seq = excluded.seq
)
INSERT INTO {schema}.told SELECT max(number), $2::bigint, $3::bigint FROM numbered HAVING count(*) > 0 RETURNING number, (SELECT count(*) FROM gone)

-- name: changes
-- Tenants that were told of after a number (1), 2 how many, 4 about how many bytes; up to the number 3 without those that were erased. For each
-- the snapshot that was told, how many there are, and the snapshot that is there now.
SELECT c.number, c.seq, c.rows, c.platform, c.tenant, coalesce(s.seq, 0), coalesce(s.uuid, ''), coalesce(s.received, 0), coalesce(s.name, ''), coalesce(s.features::text, '')
FROM (SELECT c.*, count(*) OVER () AS rows, sum(z.size) OVER (ORDER BY c.number) - z.size AS before
	FROM (SELECT * FROM {schema}.change WHERE number > $1::bigint AND (seq > 0 OR number > $3::bigint) ORDER BY number LIMIT $2::bigint) c
	CROSS JOIN LATERAL (SELECT 200 + coalesce((SELECT octet_length(s.name) + coalesce(pg_column_size(s.features), 0) FROM {schema}.snapshot s WHERE s.tenant = c.tenant AND s.platform = c.platform), 0) AS size) z) c
LEFT JOIN LATERAL (SELECT * FROM {schema}.snapshot s WHERE s.tenant = c.tenant AND s.platform = c.platform OFFSET 0) s ON true
WHERE c.before < $4::bigint ORDER BY c.number

-- name: run_lock
-- The last run: nobody begins another one meanwhile.
SELECT id, mark, began, action, completed FROM {schema}.reconcile FOR SHARE
