-- The statements that differ from SQLite's; the others are in store/statements.sql. If an argument is a slice, the statement gets an
-- array.

-- name: platform_add
INSERT INTO {schema}.platform (hash, code) SELECT DISTINCT * FROM unnest($1::bytea[], $2::bytea[]) AS n (hash, code)
WHERE NOT EXISTS (SELECT 1 FROM {schema}.platform p WHERE p.hash = n.hash) ORDER BY 1 ON CONFLICT (hash) DO NOTHING

-- name: lane_add
INSERT INTO {schema}.lane (key, platform, tenant, event_type)
SELECT n.key, substring(n.key FROM 17), n.tenant, n.event_type FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS n (key, tenant, event_type) -- the second half of a key is the platform's hash
WHERE NOT EXISTS (SELECT 1 FROM {schema}.lane l WHERE l.key = n.key)
ORDER BY n.key ON CONFLICT (key) DO NOTHING

-- name: lane_lock
SELECT {lane} FROM {schema}.lane l WHERE l.key = ANY($1::bytea[]) ORDER BY l.key FOR UPDATE

-- name: lane_save
UPDATE {schema}.lane l SET tail = n.tail, details = n.details, waiting = n.waiting, resent = n.resent, parked = n.parked, refused = n.refused,
	bytes = n.bytes, waiting_since = n.waiting_since, last_result = n.last_result, last_try = n.last_try, not_before = n.not_before, paused = n.paused, due = n.due, owner = n.owner
FROM unnest($1::bigint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
	$10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bytea[], $15::bytea[])
	AS n (tail, details, waiting, resent, parked, refused, bytes, waiting_since, last_result, last_try, not_before, paused, due, owner, key)
WHERE l.key = n.key

-- name: lane_due_repair
-- After a jump of the clock. 1 now; the latest time that is possible for: 2 not_before, 3 due after a failure, 5 the end of a lease;
-- 4 the platforms. A lane whose time is later than possible may be tried now.
UPDATE {schema}.lane SET due = CASE WHEN not_before <= $2::bigint THEN greatest($1::bigint, not_before) ELSE $1::bigint END,
	not_before = CASE WHEN not_before <= $2::bigint THEN not_before ELSE 0 END, last_try = least(last_try, $1::bigint)
WHERE platform = ANY($4::bytea[]) AND due < {never}
	AND (owner = '' AND last_result = 0 AND due > $1::bigint OR owner = '' AND due > $3::bigint OR owner <> '' AND due > $5::bigint)

-- name: claim_ready
-- 1 the platforms, 2 now, 3 whether leases that have ended may be taken over (1), 4 how many lanes of each platform. The same for all claims.
SELECT {lane} FROM unnest($1::bytea[]) AS p (id) CROSS JOIN LATERAL (
	SELECT * FROM {schema}.lane WHERE platform = p.id AND last_result = 0 AND due <= $2::bigint AND bytes > 0 AND (owner = '' OR $3::bigint = 1)
	ORDER BY due LIMIT $4::bigint FOR UPDATE SKIP LOCKED) l

-- name: claim_retry
SELECT {lane} FROM unnest($1::bytea[]) AS p (id) CROSS JOIN (VALUES (1), (2)) AS f (last_result) CROSS JOIN LATERAL (
	SELECT * FROM {schema}.lane WHERE platform = p.id AND last_result = f.last_result AND due <= $2::bigint AND bytes > 0 AND (owner = '' OR $3::bigint = 1)
	ORDER BY due LIMIT $4::bigint FOR UPDATE SKIP LOCKED) l

-- name: claim_probe
-- No lane is probed that was tried within the last second.
SELECT {lane} FROM unnest($1::bytea[]) AS p (id) CROSS JOIN LATERAL (
	SELECT * FROM {schema}.lane WHERE platform = p.id AND last_result = 2 AND due < {never} AND last_try <= $2::bigint - 1000000 AND not_before <= $2::bigint AND (owner = '' OR due <= $2::bigint AND $3::bigint = 1)
	ORDER BY last_try LIMIT $4::bigint FOR UPDATE SKIP LOCKED) l

-- name: claim_wave
-- 5 lanes that wait since then or later, 6 lanes that were last tried before then. A wave takes over no leases.
SELECT {lane} FROM unnest($1::bytea[]) AS p (id) CROSS JOIN LATERAL (
	SELECT * FROM {schema}.lane WHERE platform = p.id AND last_result = 2 AND due < {never} AND waiting_since >= $5::bigint AND last_try < $6::bigint AND not_before <= $2::bigint AND owner = '' AND $3::bigint >= 0
	ORDER BY waiting_since LIMIT $4::bigint FOR UPDATE SKIP LOCKED) l

-- name: touch
-- A write that changes nothing, to find out whether the database can be written.
UPDATE {schema}.schema_version SET version = version

-- name: take_numbers
SELECT nextval('{schema}.number'), 1::bigint FROM generate_series(1, $1::bigint)

-- name: next_waiting
-- 1 the lanes, 2 for each a webhook that does not count, 3 the size up to which the content is read, too.
SELECT w.* FROM unnest($1::bytea[], $2::bigint[]) AS n (key, seq) CROSS JOIN LATERAL (
	SELECT {webhook}, c.header, c.body FROM {schema}.webhook w JOIN {schema}.lane l ON l.key = w.lane
	LEFT JOIN {schema}.content c ON c.seq = w.seq AND w.size <= $3::bigint
	WHERE w.lane = n.key AND w.state = 0 AND w.seq <> n.seq ORDER BY w.lane_order LIMIT 1) w

-- name: first_waiting
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w JOIN {schema}.lane l ON l.key = w.lane
LEFT JOIN {schema}.content c ON c.seq = w.seq AND w.size <= $3::bigint
WHERE w.lane = $2::bytea AND w.state = 0 AND w.seq <> ALL($1::bigint[]) ORDER BY w.lane_order LIMIT 1

-- name: first_two
SELECT w.* FROM unnest($1::bytea[]) AS n (key) CROSS JOIN LATERAL (
	SELECT {webhook} FROM {schema}.webhook w JOIN {schema}.lane l ON l.key = w.lane WHERE w.lane = n.key AND w.state = 0 ORDER BY w.lane_order LIMIT 2) w

-- name: lane_refused
SELECT {webhook} FROM {schema}.lane l JOIN {schema}.webhook w ON w.lane = l.key WHERE l.key = $1::bytea AND w.state = 2 ORDER BY w.seq

-- name: supersede_waiting
UPDATE {schema}.webhook SET state = 4, changed = $4::bigint,
	status = convert_to(((convert_from(status, 'UTF8')::jsonb || jsonb_build_object('state', 'superseded', 'why', convert_from($5::bytea, 'UTF8'), 'changed', convert_from($6::bytea, 'UTF8'))) - 'next')::text, 'UTF8')
WHERE seq IN (SELECT seq FROM {schema}.webhook
	WHERE lane = $2::bytea AND state = 0 AND snapshot = 1 AND seq < $3::bigint AND NOT coalesce((convert_from(status, 'UTF8')::jsonb ->> 'forced')::boolean, false) AND seq <> ALL($1::bigint[]) LIMIT $7::bigint)
RETURNING size, lane_order

-- name: supersede_parked
UPDATE {schema}.webhook SET state = 4, changed = $4::bigint,
	status = convert_to(((convert_from(status, 'UTF8')::jsonb || jsonb_build_object('state', 'superseded', 'why', convert_from($5::bytea, 'UTF8'), 'changed', convert_from($6::bytea, 'UTF8'))) - 'next')::text, 'UTF8')
WHERE seq IN (SELECT seq FROM {schema}.webhook
	WHERE lane = $2::bytea AND state = 1 AND snapshot = 1 AND seq < $3::bigint AND NOT coalesce((convert_from(status, 'UTF8')::jsonb ->> 'forced')::boolean, false) AND seq <> ALL($1::bigint[]) LIMIT $7::bigint)
RETURNING size, lane_order

-- name: webhook_add
INSERT INTO {schema}.webhook (seq, uuid, lane, type, snapshot, digest, size, received, state, lane_order, changed, status)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bigint[], $6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[],
	$10::bigint[], $11::bigint[], $12::bytea[])

-- name: webhook_save
UPDATE {schema}.webhook w SET state = n.state, lane_order = n.lane_order, changed = n.changed, status = n.status
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[]) AS n (state, lane_order, changed, status, seq) WHERE w.seq = n.seq

-- name: content_add
INSERT INTO {schema}.content (seq, header, body) SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[])

-- name: snapshot_save
INSERT INTO {schema}.snapshot (lane, seq, uuid, received, name, features)
SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bytea[], $6::bytea[])
ON CONFLICT (lane) DO UPDATE SET seq = excluded.seq, uuid = excluded.uuid, received = excluded.received, name = excluded.name, features = excluded.features

-- name: snapshots_between
SELECT l.platform, l.tenant, s.seq, s.uuid, s.received, s.name, s.features
FROM unnest($1::bytea[], $2::bytea[]) AS n (a, b) JOIN {schema}.snapshot s ON s.lane BETWEEN n.a AND n.b JOIN {schema}.lane l ON l.key = s.lane

-- name: seen_find
-- An id whose webhook is no longer stored counts as delivered (3).
SELECT s.lane, s.id, s.digest, s.seq, s.at, coalesce(w.state, 3), s.uuid
FROM unnest($1::bytea[], $2::bytea[]) AS n (lane, id) JOIN {schema}.seen_id s ON s.lane = n.lane AND s.id = n.id
LEFT JOIN {schema}.webhook w ON w.seq = s.seq

-- name: seen_save
INSERT INTO {schema}.seen_id (lane, id, digest, seq, at, uuid) SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bytea[])
ON CONFLICT (lane, id, digest) DO UPDATE SET seq = excluded.seq, at = excluded.at, uuid = excluded.uuid

-- name: previous
-- Two rows for each webhook: its tenant's last snapshot before it that was not accepted (waiting, parked, superseded, discarded), and
-- the last one that was (delivered, kept).
SELECT n.seq, p.* FROM unnest($1::bytea[], $2::bigint[]) AS n (lane, seq) CROSS JOIN LATERAL (
	(SELECT seq, state, ''::bytea FROM {schema}.webhook WHERE lane = n.lane AND seq < n.seq AND snapshot = 1 AND state NOT IN (2, 3, 6, 7) ORDER BY seq DESC LIMIT 1)
	UNION ALL
	(SELECT w.seq, w.state, c.body FROM {schema}.webhook w JOIN {schema}.content c ON c.seq = w.seq
		WHERE w.lane = n.lane AND w.seq < n.seq AND w.snapshot = 1 AND w.state IN (3, 6) ORDER BY w.seq DESC LIMIT 1)) p

-- name: refused_copies
SELECT {webhook} FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON l.key = w.lane WHERE w.state = 2 AND w.digest = ANY($1::bytea[]) FOR UPDATE OF w

-- name: lane_subtract_refused
UPDATE {schema}.lane l SET refused = greatest(l.refused - n.count, 0)
FROM (SELECT key, count(*) FROM unnest($1::bytea[]) AS u (key) GROUP BY key) n WHERE l.key = n.key

-- name: sweep_lock
-- 1: this replica may delete. The lock ends with the transaction.
SELECT pg_try_advisory_xact_lock(hashtext('usher sweep {schema}'))::int::bigint

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: settings
SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on'
		ELSE current_setting('synchronous_commit') END, true),
	set_config('client_min_messages', 'warning', true), -- a COMMIT that no standby has confirmed comes with a warning
	set_config('statement_timeout', '9000', true), set_config('lock_timeout', '2000', true), set_config('idle_in_transaction_session_timeout', '10000', true),
	-- The writer finds everything by its key. Without these the server would keep plans that it made while the tables were small,
	-- and read whole tables.
	set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true)

-- name: import_lock
LOCK TABLE {schema}.lane IN EXCLUSIVE MODE -- a weaker lock could deadlock with a transaction that has locked a lane

-- name: last_number
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.number

-- name: import_set_number
SELECT setval('{schema}.number', greatest($1::bigint, (SELECT last_value FROM {schema}.number), 1))
