-- The statements that differ from PostgreSQL's; the others are in engine/statements.sql. If an argument is a slice, the statement
-- runs once for each element.

-- name: begin_write
BEGIN IMMEDIATE

-- name: begin_read
BEGIN

-- name: commit
COMMIT

-- name: lane_add
INSERT INTO lane (tenant, platform, event_type) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING RETURNING tenant

-- name: lane_lock
SELECT {lane} FROM lane l WHERE l.tenant = ?1 AND l.platform = ?2 AND l.event_type = ?3

-- name: touch
-- A write that changes nothing, to find out whether the database can be written.
UPDATE number SET last = last

-- name: take_numbers
-- If the last number is damaged, the next one is above all that webhooks have.
UPDATE number SET last = ?1 + CASE WHEN typeof(last) = 'integer' AND last BETWEEN 0 AND {largest} THEN last ELSE (SELECT coalesce(max(seq), 0) FROM webhook WHERE seq <= {largest}) END RETURNING last - ?1 + 1, ?1

-- name: next_waiting
-- 1 to 3 the lane, 4 a webhook that does not count, 5 the size up to which the content is read, too.
SELECT {webhook}, c.header, c.body FROM lane l JOIN webhook w ON w.seq = (
	SELECT f.seq FROM webhook f WHERE f.tenant = ?1 AND f.platform = ?2 AND f.event_type = ?3 AND f.state {waiting} AND f.seq <> ?4 ORDER BY f.seq LIMIT 1)
LEFT JOIN content c ON c.seq = w.seq AND w.size <= ?5
WHERE l.tenant = ?1 AND l.platform = ?2 AND l.event_type = ?3 AND l.waiting > (?4 > 0)

-- name: snapshots
SELECT platform, tenant, seq, uuid, received, name, coalesce(features, ''), change, source FROM snapshot WHERE tenant = ?1

-- name: snapshots_of
-- 1 and 2 the tenant.
SELECT platform, tenant, seq, uuid, received, name, coalesce(features, ''), change, source FROM snapshot WHERE tenant = ?1 AND platform = ?2

-- name: elsewhere
-- The other platforms on which the code of a tenant (1, 2) is known.
SELECT ?1, ?2, platform FROM snapshot WHERE tenant = ?1 AND platform <> ?2

-- name: invalid_lock
-- The whole file is locked already.
SELECT 1

-- name: invalid_copies
SELECT {webhook} FROM webhook w LEFT JOIN lane l ON {of} WHERE w.state {invalid} AND w.digest = ?1

-- name: lane_subtract_invalid
UPDATE lane SET invalid = max(invalid - 1, 0) WHERE tenant = ?1 AND platform = ?2 AND event_type = ?3

-- name: sweep_lock
-- 1: this process may delete. No other process has the file.
SELECT 1

-- name: put
INSERT INTO {table} ({columns}) VALUES ({arguments})

-- name: save
UPDATE {table} SET {set arguments} WHERE {key arguments}

-- name: number_raise
UPDATE number SET last = max(last, ?1)

-- name: highest_last
-- No lane has a higher one: both are in the same file.
SELECT last FROM number

-- name: gate_up
SELECT at FROM gate_up

-- name: untold
-- Nothing: triggers tell at once.
SELECT 0, 0, 0

-- name: changes
-- Tenants that were told of after a number (1), 2 how many, 4 about how many bytes; up to the number 3 without those that were erased. For each
-- the snapshot that was told, how many there are, and the snapshot that is there now.
SELECT c.number, c.seq, c.rows, c.platform, c.tenant, coalesce(s.seq, 0), coalesce(s.uuid, ''), coalesce(s.received, 0), coalesce(s.name, ''), coalesce(s.features, '')
FROM (SELECT c.*, count(*) OVER () AS rows, sum(c.size) OVER (ORDER BY c.number) - c.size AS before
	FROM (SELECT c.*, 200 + coalesce((SELECT octet_length(s.name) + coalesce(octet_length(s.features), 0) FROM snapshot s WHERE s.tenant = c.tenant AND s.platform = c.platform), 0) AS size
		FROM change c WHERE c.number > ?1 AND (c.seq > 0 OR c.number > ?3) ORDER BY c.number LIMIT +?2) c) c
LEFT JOIN snapshot s ON s.tenant = c.tenant AND s.platform = c.platform
WHERE c.before < ?4 ORDER BY c.number

-- name: copy_identity
-- No cursor of the original is known here.
UPDATE told SET token = random() & 9223372036854775807

-- name: copy_pause
-- Everything, until somebody resumes. 1 is when the copy was made.
INSERT INTO pause (receiver, platform, tenant, since, until, copied) VALUES ('', '', '', ?1, {never}, ?1)
ON CONFLICT (receiver, platform, tenant) DO UPDATE SET until = excluded.until, copied = excluded.copied

-- name: run_lock
-- The whole file is locked already.
SELECT id, mark, began, action, completed FROM reconcile
