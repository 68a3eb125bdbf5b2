-- The statements that differ from PostgreSQL's; the others are in engine/statements.sql. If an argument is a slice, the statement
-- runs once for each element.

-- name: begin_write
BEGIN IMMEDIATE

-- name: begin_read
BEGIN

-- name: commit
COMMIT

-- name: lane_add
-- Whether webhooks wait in it (1), although it is new.
INSERT INTO lane (tenant, platform, event_type) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING RETURNING tenant, platform, event_type,
	CASE WHEN EXISTS (SELECT 1 FROM {schema}.webhook w WHERE w.tenant = lane.tenant AND w.platform = lane.platform AND w.event_type = lane.event_type AND w.state {waiting}) THEN 1 ELSE 0 END

-- name: lane_lock
SELECT {lane} FROM lane l WHERE l.tenant = ?1 AND l.platform = ?2 AND l.event_type = ?3

-- name: lanes_misnamed
-- Lanes whose key is damaged: nobody can deliver them, and they are not found any more.
UPDATE lane SET due = {never} WHERE typeof(tenant) <> 'text' OR typeof(platform) <> 'text' OR typeof(event_type) <> 'text' OR tenant = '' AND event_type = ''

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

-- name: snapshots_unread
-- Some of the tenants whose features cannot be read. It reads all of them.
SELECT tenant, platform FROM tenants t WHERE NOT features_known AND EXISTS (SELECT 1 FROM snapshot s WHERE s.tenant = t.tenant AND s.platform = t.platform AND s.features IS NOT NULL) LIMIT +?1

-- name: snapshot_unread
UPDATE snapshot SET features = NULL WHERE tenant = ?1 AND platform = ?2 AND EXISTS (SELECT 1 FROM tenants t WHERE t.tenant = ?1 AND t.platform = ?2 AND NOT t.features_known)

-- name: beside
-- What is known of a tenant (1, 2) beside its lane and its snapshot: its finding, and the other platforms that have a
-- tenant of this code, with one row for each; one row, if there is none.
SELECT n.tenant, n.platform, coalesce(f.digest, {empty}), coalesce(f.dismissed, 0), coalesce(f.erased, 0), s.platform IS NOT NULL, coalesce(s.platform, '')
FROM (SELECT ?1 AS tenant, ?2 AS platform) AS n
LEFT JOIN finding f ON f.tenant = n.tenant AND f.platform = n.platform
LEFT JOIN snapshot s ON s.tenant = n.tenant AND s.platform <> n.platform

-- name: seen_find
-- An id whose webhook is no longer stored counts as delivered.
SELECT s.tenant, s.platform, s.event_type, s.id, s.digest, s.seq, s.at, coalesce(w.state, {#delivered}), s.uuid FROM seen_id s LEFT JOIN webhook w ON w.seq = s.seq
WHERE s.tenant = ?1 AND s.platform = ?2 AND s.event_type = ?3 AND s.id = ?4

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

-- name: run_lock
-- The run, which nobody ends meanwhile.
SELECT id, mark, began, as_of, action, alive, ended, complete, failed, found FROM {schema}.reconcile WHERE id = $1::text

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

-- name: tenant_history
-- How many webhooks each of these tenants (3) got from 1 on and before 2, and when the last of them came.
WITH got AS (SELECT received, tenant, platform FROM webhook WHERE event_type = '' AND received >= ?1 AND received < ?2)
SELECT l.tenant, l.platform, (SELECT count(*) FROM got w WHERE w.tenant = l.tenant AND w.platform = l.platform),
	(SELECT coalesce(max(received), 0) FROM got w WHERE w.tenant = l.tenant AND w.platform = l.platform)
FROM json_each(?3) t CROSS JOIN lane l ON l.tenant = t.value ->> 0 AND l.platform = t.value ->> 1 AND l.event_type = ''

-- name: copy_identity
-- No cursor of the original is known here.
UPDATE told SET token = random() & 9223372036854775807

-- name: copy_pause
-- Everything, until somebody resumes. 1 is when the copy was made.
INSERT INTO pause (receiver, platform, tenant, since, until, copied) VALUES ('', '', '', ?1, {never}, ?1)
ON CONFLICT (receiver, platform, tenant) DO UPDATE SET until = excluded.until, copied = excluded.copied
