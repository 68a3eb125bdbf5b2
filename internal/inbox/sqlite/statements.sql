-- The statements that differ from PostgreSQL's; the others are in store/statements.sql. If an argument is a slice, the statement
-- runs once for each element; or, if it says json_each, once with the slice as a JSON array (bytes in hex).

-- name: begin_write
BEGIN IMMEDIATE

-- name: begin_read
BEGIN

-- name: commit
COMMIT

-- name: platform_add
INSERT INTO platform (hash, code) VALUES (?1, ?2) ON CONFLICT DO NOTHING

-- name: lane_add
INSERT INTO lane (key, platform, tenant, event_type) VALUES (?1, substr(?1, 17), ?2, ?3) ON CONFLICT DO NOTHING -- the second half of a key is the platform's hash

-- name: lane_lock
SELECT {lane} FROM lane l WHERE l.key IN (SELECT unhex(value) FROM json_each(?1))

-- name: lane_save
UPDATE lane SET tail = ?, details = ?, waiting = ?, resent = ?, parked = ?, refused = ?, bytes = ?, waiting_since = ?, last_result = ?, last_try = ?, not_before = ?,
	paused = ?, due = ?, owner = ?
WHERE key = ?

-- name: lane_due_repair
-- After a jump of the clock. 1 now; the latest time that is possible for: 2 not_before, 3 due after a failure; 4 the platforms.
-- Leases do not end here. A lane whose time is later than possible may be tried now.
UPDATE lane SET due = CASE WHEN not_before <= ?2 THEN max(?1, not_before) ELSE ?1 END, not_before = CASE WHEN not_before <= ?2 THEN not_before ELSE 0 END, last_try = min(last_try, ?1)
WHERE platform = ?4 AND due < {never} AND owner = x'' AND (last_result = 0 AND due > ?1 OR last_result = 1 AND due > ?3 OR last_result = 2 AND due > ?3)

-- name: claim_ready
-- 1 the platform, 2 now, 3 whether leases that have ended may be taken over (1), 4 how many lanes. The same for all claims.
SELECT {lane} FROM lane l WHERE l.platform = ?1 AND l.last_result = 0 AND l.due <= ?2 AND l.bytes > 0 AND (l.owner = x'' OR ?3 = 1) ORDER BY l.due LIMIT ?4

-- name: claim_retry
SELECT {lane} FROM (
	SELECT * FROM (SELECT * FROM lane WHERE platform = ?1 AND last_result = 1 AND due <= ?2 AND bytes > 0 AND (owner = x'' OR ?3 = 1) ORDER BY due LIMIT ?4)
	UNION ALL
	SELECT * FROM (SELECT * FROM lane WHERE platform = ?1 AND last_result = 2 AND due <= ?2 AND bytes > 0 AND (owner = x'' OR ?3 = 1) ORDER BY due LIMIT ?4)) l

-- name: claim_probe
-- No lane is probed that was tried within the last second.
SELECT {lane} FROM lane l WHERE l.platform = ?1 AND l.last_result = 2 AND l.due < {never} AND l.last_try <= ?2 - 1000000 AND l.not_before <= ?2 AND (l.owner = x'' OR l.due <= ?2 AND ?3 = 1)
ORDER BY l.last_try LIMIT ?4

-- name: claim_wave
-- 5 lanes that wait since then or later, 6 lanes that were last tried before then. A wave takes over no leases.
SELECT {lane} FROM lane l WHERE l.platform = ?1 AND l.last_result = 2 AND l.due < {never} AND l.waiting_since >= ?5 AND l.last_try < ?6 AND l.not_before <= ?2 AND l.owner = x'' AND ?3 >= 0
ORDER BY l.waiting_since LIMIT ?4

-- name: touch
-- A write that changes nothing, to find out whether the database can be written.
UPDATE number SET last = last

-- name: take_numbers
UPDATE number SET last = last + ?1 RETURNING last - ?1 + 1, ?1

-- name: next_waiting
-- 1 the lane, 2 a webhook that does not count, 3 the size up to which the content is read, too.
SELECT {webhook}, c.header, c.body FROM webhook w JOIN lane l ON l.key = w.lane LEFT JOIN content c ON c.seq = w.seq AND w.size <= ?3
WHERE w.lane = ?1 AND w.state = 0 AND w.seq <> ?2 ORDER BY w.lane_order LIMIT 1

-- name: first_waiting
SELECT {webhook}, c.header, c.body FROM webhook w JOIN lane l ON l.key = w.lane LEFT JOIN content c ON c.seq = w.seq AND w.size <= ?3
WHERE w.lane = ?2 AND w.state = 0 AND w.seq NOT IN (SELECT value FROM json_each(?1)) ORDER BY w.lane_order LIMIT 1

-- name: first_two
SELECT {webhook} FROM webhook w JOIN lane l ON l.key = w.lane WHERE w.lane = ?1 AND w.state = 0 ORDER BY w.lane_order LIMIT 2

-- name: lane_refused
SELECT {webhook} FROM lane l JOIN webhook w ON w.lane = l.key WHERE l.key = ?1 AND w.state = 2 ORDER BY w.seq

-- name: supersede_waiting
UPDATE webhook SET state = 4, changed = ?4,
	status = CAST(json_patch(CAST(status AS TEXT), json_object('state', 'superseded', 'why', CAST(?5 AS TEXT), 'changed', CAST(?6 AS TEXT), 'next', NULL)) AS BLOB)
WHERE seq IN (SELECT seq FROM webhook
	WHERE lane = ?2 AND state = 0 AND snapshot = 1 AND seq < ?3 AND coalesce(CAST(status AS TEXT) ->> 'forced', 0) = 0 AND seq NOT IN (SELECT value FROM json_each(?1)) LIMIT ?7)
RETURNING size, lane_order

-- name: supersede_parked
UPDATE webhook SET state = 4, changed = ?4,
	status = CAST(json_patch(CAST(status AS TEXT), json_object('state', 'superseded', 'why', CAST(?5 AS TEXT), 'changed', CAST(?6 AS TEXT), 'next', NULL)) AS BLOB)
WHERE seq IN (SELECT seq FROM webhook
	WHERE lane = ?2 AND state = 1 AND snapshot = 1 AND seq < ?3 AND coalesce(CAST(status AS TEXT) ->> 'forced', 0) = 0 AND seq NOT IN (SELECT value FROM json_each(?1)) LIMIT ?7)
RETURNING size, lane_order

-- name: webhook_add
INSERT INTO webhook (seq, uuid, lane, type, snapshot, digest, size, received, state, lane_order, changed, status)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: webhook_save
UPDATE webhook SET state = ?, lane_order = ?, changed = ?, status = ? WHERE seq = ?

-- name: content_add
INSERT INTO content (seq, header, body) VALUES (?, ?, ?)

-- name: snapshot_save
INSERT INTO snapshot (lane, seq, uuid, received, name, features) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (lane) DO UPDATE SET seq = excluded.seq, uuid = excluded.uuid, received = excluded.received, name = excluded.name, features = excluded.features

-- name: snapshots_between
SELECT l.platform, l.tenant, s.seq, s.uuid, s.received, s.name, s.features FROM snapshot s JOIN lane l ON l.key = s.lane WHERE s.lane BETWEEN ?1 AND ?2

-- name: seen_find
-- An id whose webhook is no longer stored counts as delivered (3).
SELECT s.lane, s.id, s.digest, s.seq, s.at, coalesce(w.state, 3), s.uuid FROM seen_id s LEFT JOIN webhook w ON w.seq = s.seq
WHERE s.lane = ?1 AND s.id = ?2

-- name: seen_save
INSERT INTO seen_id (lane, id, digest, seq, at, uuid) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (lane, id, digest) DO UPDATE SET seq = excluded.seq, at = excluded.at, uuid = excluded.uuid

-- name: previous
-- Two rows for each webhook: its tenant's last snapshot before it that was not accepted (waiting, parked, superseded, discarded), and
-- the last one that was (delivered, kept).
SELECT * FROM (SELECT ?2, seq, state, x'' FROM webhook WHERE lane = ?1 AND seq < ?2 AND snapshot = 1 AND state NOT IN (2, 3, 6, 7) ORDER BY seq DESC LIMIT 1)
UNION ALL
SELECT * FROM (SELECT ?2, w.seq, w.state, c.body FROM webhook w JOIN content c ON c.seq = w.seq
	WHERE w.lane = ?1 AND w.seq < ?2 AND w.snapshot = 1 AND w.state IN (3, 6) ORDER BY w.seq DESC LIMIT 1)

-- name: refused_copies
SELECT {webhook} FROM webhook w LEFT JOIN lane l ON l.key = w.lane WHERE w.state = 2 AND w.digest = ?1

-- name: lane_subtract_refused
UPDATE lane SET refused = max(refused - 1, 0) WHERE key = ?1

-- name: sweep_lock
-- 1: this process may delete. No other process has the file.
SELECT 1

-- name: import_lock
-- The whole file is locked already.
SELECT 1

-- name: last_number
SELECT last FROM number

-- name: import_set_number
UPDATE number SET last = max(last, ?1)
