-- The statements that both engines have; statements.sql of each engine has those that differ. Each is named after the question
-- that it answers or the change that it makes. They are spelled as PostgreSQL wants them, with casts that SQLite's engine drops.
-- What is in braces is replaced: {lane} and {webhook} by columns, {among} by a condition for a slice of numbers, {lock} by the lock
-- of a webhook's row; see Statements. The numbers of the states are in 001.sql.

-- name: platforms
SELECT code FROM {schema}.platform

-- name: lanes_between
SELECT {lane} FROM {schema}.lane l WHERE l.key BETWEEN $1 AND $2

-- name: webhooks
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON l.key = w.lane
LEFT JOIN {schema}.content c ON c.seq = w.seq WHERE w.seq {among}

-- name: webhooks_lock
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON l.key = w.lane
LEFT JOIN {schema}.content c ON c.seq = w.seq WHERE w.seq {among} {lock}

-- name: webhook_delete
DELETE FROM {schema}.webhook WHERE seq {among}

-- name: finished_delete
DELETE FROM {schema}.webhook WHERE seq {among} AND state > 2

-- name: content_delete_orphans
DELETE FROM {schema}.content AS c WHERE c.seq {among} AND NOT EXISTS (SELECT 1 FROM {schema}.webhook w WHERE w.seq = c.seq)

-- name: content_delete
DELETE FROM {schema}.content WHERE seq {among}

-- name: content
SELECT header, body FROM {schema}.content WHERE seq = $1

-- name: seen_delete_lane
DELETE FROM {schema}.seen_id WHERE lane = $1

-- name: seen_delete_discarded
DELETE FROM {schema}.seen_id WHERE (lane, seq) IN (SELECT lane, seq FROM {schema}.webhook WHERE seq {among} AND state = 5)

-- name: seen_expire
DELETE FROM {schema}.seen_id WHERE at < $1::bigint

-- name: erase_content
DELETE FROM {schema}.content WHERE seq IN (SELECT seq FROM {schema}.webhook WHERE lane = $1)

-- name: erase_webhooks
DELETE FROM {schema}.webhook WHERE lane = $1 RETURNING seq

-- name: erase_snapshot
DELETE FROM {schema}.snapshot WHERE lane = $1

-- name: pauses
SELECT receiver, platform, tenant, since FROM {schema}.pause ORDER BY since

-- name: pause_add
INSERT INTO {schema}.pause (receiver, platform, tenant, key, since) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (key) DO NOTHING

-- name: pause_remove
DELETE FROM {schema}.pause WHERE key = $1 RETURNING since

-- name: list
-- 1 only below this seq, 2 the state (-1: any), 3 and 4 received from and before, 5 whether with content (1), 6 how many. The same for all lists.
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON l.key = w.lane
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint ORDER BY w.seq DESC LIMIT $6::bigint

-- name: list_parked_or_refused
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON l.key = w.lane
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.state IN (1, 2) AND w.seq < $1::bigint AND w.state = $2::bigint AND w.received >= $3::bigint AND w.received < $4::bigint ORDER BY w.seq DESC LIMIT $6::bigint

-- name: list_tenant
-- 7 and 8 the first and the last key that a lane of the tenant can have.
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON l.key = w.lane
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.lane BETWEEN $7::bytea AND $8::bytea AND w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint ORDER BY w.seq DESC LIMIT $6::bigint

-- name: figures
SELECT platform, sum(waiting)::bigint, min(waiting_since), sum(parked)::bigint, sum(bytes)::bigint,
	count(*) FILTER (WHERE last_result = 2 AND waiting > 0), count(*) FILTER (WHERE last_result = 1 AND waiting > 0)
FROM {schema}.lane WHERE bytes > 0 GROUP BY platform

-- name: refused_delete
-- The oldest: beyond so many, beyond so many bytes, or from before this time. But not one that another replica has dealt with meanwhile.
DELETE FROM {schema}.webhook WHERE state = 2 AND seq IN (
	SELECT seq FROM (SELECT seq, received, row_number() OVER newer AS count, sum(size) OVER newer AS bytes FROM {schema}.webhook WHERE state IN (1, 2) AND state = 2
		WINDOW newer AS (ORDER BY seq DESC)) AS r
	WHERE count > $1::bigint OR bytes > $2::bigint OR received < $3::bigint)
RETURNING seq, lane

-- name: refused_count
SELECT count(*) FROM {schema}.webhook WHERE state IN (1, 2) AND state = 2

-- name: tenant_count
SELECT count(*) FROM {schema}.snapshot

-- name: tenants
SELECT l.platform, l.tenant, coalesce(s.name, {empty}), coalesce(s.received, 0), l.waiting, l.parked, l.refused, l.last_result, l.paused
FROM {schema}.lane l LEFT JOIN {schema}.snapshot s ON s.lane = l.key
WHERE l.tenant <> {empty} AND (l.tail > 0 OR l.refused > 0 OR l.paused > 0) AND (l.tenant, l.platform) > ($1::bytea, $2::bytea)
AND ($3::bigint = 0 OR l.parked + l.refused > 0 OR l.last_result > 0 AND l.waiting > 0) ORDER BY l.tenant, l.platform LIMIT $4::bigint

-- name: lanes_held_up
SELECT {lane} FROM {schema}.lane l WHERE l.last_result > 0 AND l.waiting > 0 ORDER BY l.waiting_since LIMIT $1::bigint

-- name: finished_beyond
-- The newest finished webhook beyond so many.
SELECT changed, seq FROM {schema}.webhook WHERE state > 2 ORDER BY changed DESC, seq DESC LIMIT 1 OFFSET $1::bigint

-- name: finished_beyond_all
-- The newest finished webhook beyond so many, beyond so many bytes, or from before this time.
SELECT changed, seq FROM (SELECT changed, seq, row_number() OVER newer AS count, sum(size) OVER newer AS bytes
	FROM (SELECT changed, seq, size FROM {schema}.webhook WHERE state > 2 ORDER BY changed DESC, seq DESC LIMIT $1::bigint + 1) AS n -- without LIMIT all are read
	WINDOW newer AS (ORDER BY changed DESC, seq DESC)) AS f
WHERE count > $1::bigint OR bytes > $2::bigint OR changed < $3::bigint ORDER BY changed DESC, seq DESC LIMIT 1

-- name: finished_up_to
SELECT seq FROM {schema}.webhook WHERE state > 2 AND (changed, seq) <= ($1::bigint, $2::bigint) ORDER BY changed, seq LIMIT $3::bigint

-- name: action_add
INSERT INTO {schema}.action (at, entry) VALUES ($1, $2)

-- name: actions
SELECT id, at, entry FROM {schema}.action WHERE id < $1::bigint ORDER BY id DESC LIMIT $2::bigint

-- name: action_expire
DELETE FROM {schema}.action WHERE at < $1::bigint

-- name: export_lanes
SELECT {lane} FROM {schema}.lane l WHERE l.tail > 0 ORDER BY l.key

-- name: export_webhooks
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON l.key = w.lane LEFT JOIN {schema}.content c ON c.seq = w.seq ORDER BY w.seq

-- name: export_snapshots
SELECT l.platform, l.tenant, s.seq, s.uuid, s.received, s.name, s.features FROM {schema}.snapshot s JOIN {schema}.lane l ON l.key = s.lane ORDER BY s.lane

-- name: export_seen
SELECT l.platform, l.tenant, l.event_type, s.id, s.digest, s.seq, s.at, s.uuid FROM {schema}.seen_id s JOIN {schema}.lane l ON l.key = s.lane ORDER BY s.lane, s.id, s.digest

-- name: inbox_filled
SELECT count(*) FROM (SELECT 1 FROM {schema}.webhook UNION ALL SELECT 1 FROM {schema}.snapshot LIMIT 1) AS f

-- name: import_forget_copies
UPDATE {schema}.lane SET details = {empty}

-- name: import_recount
WITH c AS MATERIALIZED ( -- MATERIALIZED: the server has no statistics about tables that this transaction has filled, and would count once for each lane
	SELECT lane, count(*) FILTER (WHERE state = 0) AS waiting, count(*) FILTER (WHERE state = 0 AND lane_order < 0) AS resent,
	count(*) FILTER (WHERE state = 1) AS parked, count(*) FILTER (WHERE state = 2) AS refused,
	coalesce(sum(size) FILTER (WHERE state IN (0, 1)), 0)::bigint AS bytes, coalesce(min(received) FILTER (WHERE state = 0), {never}) AS waiting_since
	FROM {schema}.webhook WHERE lane <> {empty} AND state IN (0, 1, 2) GROUP BY lane)
UPDATE {schema}.lane AS l SET waiting = c.waiting, resent = c.resent, parked = c.parked, refused = c.refused, bytes = c.bytes, waiting_since = c.waiting_since,
	due = CASE WHEN c.waiting > 0 AND l.paused = 0 THEN $1::bigint ELSE {never} END
FROM c WHERE l.key = c.lane AND l.owner = {empty}
