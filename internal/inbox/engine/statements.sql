-- The statements that both engines have; statements.sql of each engine has those that differ. Each is named after the question
-- that it answers or the change that it makes. They are spelled as PostgreSQL wants them, with casts that SQLite's engine drops.
-- What is in braces is replaced: {lane} and {webhook} by columns, {of} by the condition that l is the lane of w, {among} and {other} by
-- conditions for the numbers in $1, {lock} and {skip} by the lock of a row; see Statements. {waiting} and {finished} behind a column are
-- conditions, see package state.

-- name: claim
-- 1 the receiver, 2 now, 3 whether leases that have ended may be taken over (1). How many lanes: 4 that have not failed and wait longest,
-- 5 that have not failed and came last, 6 that have failed (8: 1), or whose receiver was down (8: 2), and were last tried before 7, due or not,
-- those that were tried longest ago, 9 that failed and are due.
SELECT l.kind, {lane} FROM (
	SELECT * FROM (SELECT 0 AS kind, * FROM {schema}.lane WHERE receiver = $1::text AND last_result = 0 AND due <= $2::bigint AND bytes > 0 AND (owner = {empty} OR $3::bigint = 1) ORDER BY due LIMIT $4::bigint {skip}) a
	UNION ALL
	SELECT * FROM (SELECT 1 AS kind, * FROM {schema}.lane WHERE receiver = $1::text AND last_result = 0 AND due <= $2::bigint AND bytes > 0 AND (owner = {empty} OR $3::bigint = 1) ORDER BY due DESC LIMIT $5::bigint {skip}) b
	UNION ALL
	SELECT * FROM (SELECT 2 AS kind, * FROM {schema}.lane WHERE receiver = $1::text AND last_try < $7::bigint AND last_result >= $8::bigint AND last_result > 0 AND due < {never} AND not_before <= $2::bigint
		AND (owner = {empty} OR due <= $2::bigint AND $3::bigint = 1) ORDER BY last_try LIMIT $6::bigint {skip}) c
	UNION ALL
	SELECT * FROM (SELECT 3 AS kind, * FROM {schema}.lane WHERE receiver = $1::text AND last_result = 1 AND due <= $2::bigint AND bytes > 0 AND (owner = {empty} OR $3::bigint = 1) ORDER BY due LIMIT $9::bigint {skip}) d
	UNION ALL
	SELECT * FROM (SELECT 3 AS kind, * FROM {schema}.lane WHERE receiver = $1::text AND last_result = 2 AND due <= $2::bigint AND bytes > 0 AND (owner = {empty} OR $3::bigint = 1) ORDER BY due LIMIT $9::bigint {skip}) e) l

-- name: lane_due_correct
-- Lanes that are due later than is possible: the clock was set back since. They may be tried now (1), or at a time that the receiver has asked
-- for, if that is possible (not later than 2). 3 the receiver, 4 the last result. The latest times that are possible: 5 without an owner, 6 the
-- end of a lease.
UPDATE {schema}.lane SET due = CASE WHEN not_before > $1::bigint AND not_before <= $2::bigint THEN not_before ELSE $1::bigint END,
	not_before = CASE WHEN not_before <= $2::bigint THEN not_before ELSE 0 END
WHERE receiver = $3::text AND last_result = $4::bigint AND due > $5::bigint AND due < {never} AND bytes > 0
	AND (due > not_before OR due > $2::bigint) AND (owner = {empty} OR due > $6::bigint)

-- name: lane_try_correct
-- No lane of receiver 2 was tried, or failed, later than now (1).
UPDATE {schema}.lane SET last_try = $1::bigint, failing_since = CASE WHEN failing_since > $1::bigint THEN $1::bigint ELSE failing_since END
WHERE receiver = $2::text AND last_try > $1::bigint AND last_result > 0 AND due < {never}

-- name: receivers
-- The names that lanes have, one step through the index for each.
WITH RECURSIVE r (receiver) AS (
	SELECT * FROM (SELECT receiver FROM {schema}.lane WHERE bytes > 0 ORDER BY receiver LIMIT 1) AS f
	UNION ALL
	SELECT (SELECT n.receiver FROM {schema}.lane n WHERE n.bytes > 0 AND n.receiver > r.receiver ORDER BY n.receiver LIMIT 1) FROM r WHERE r.receiver IS NOT NULL)
SELECT receiver FROM r WHERE receiver IS NOT NULL

-- name: misrouted
-- Lanes of a receiver (1) that nobody delivers, and whose platform is in the list (3: 1) or is not in it (3: 0); 4 now, 5 how many.
SELECT l.tenant, l.platform, l.event_type FROM {schema}.lane l
WHERE l.receiver = $1::text AND l.bytes > 0 AND (l.platform {listed}) = ($3::bigint = 1) AND (l.owner = {empty} OR l.due <= $4::bigint) LIMIT $5::bigint

-- name: unserved
-- Some platforms whose webhooks wait, and that no receiver takes.
SELECT DISTINCT platform FROM (SELECT platform FROM {schema}.lane WHERE receiver = '' AND bytes > 0 AND waiting > 0 LIMIT 1000) AS l ORDER BY platform LIMIT 5

-- name: lanes_of_tenant
SELECT {lane} FROM {schema}.lane l WHERE l.tenant = $1::text AND l.event_type = ''

-- name: first_waiting
-- The lane's first waiting webhook that is none of $1: 2 to 4 the lane, 5 the size up to which the content is read, too.
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w JOIN {schema}.lane l ON {of} LEFT JOIN {schema}.content c ON c.seq = w.seq AND w.size <= $5::bigint
WHERE w.seq = (SELECT seq FROM {schema}.webhook WHERE tenant = $2::text AND platform = $3::text AND event_type = $4::text AND state {waiting} AND seq {other} ORDER BY seq LIMIT 1)

-- name: lane_invalid
SELECT {webhook} FROM {schema}.webhook w JOIN {schema}.lane l ON {of}
WHERE w.tenant = $1::text AND w.platform = $2::text AND w.event_type = $3::text AND w.state {invalid} ORDER BY w.seq

-- name: parked_snapshots
SELECT {webhook} FROM {schema}.webhook w JOIN {schema}.lane l ON {of}
WHERE w.tenant = $1::text AND w.platform = $2::text AND w.event_type = $3::text AND w.state {parked} AND w.snapshot = 1 LIMIT 100

-- name: webhooks
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq WHERE w.seq {among}

-- name: webhooks_lock
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq WHERE w.seq {among} {lock}

-- name: finished_delete
DELETE FROM {schema}.webhook WHERE seq {among} AND state {finished}

-- name: content_delete_orphans
DELETE FROM {schema}.content AS c WHERE c.seq {among} AND NOT EXISTS (SELECT 1 FROM {schema}.webhook w WHERE w.seq = c.seq)

-- name: content_delete
DELETE FROM {schema}.content WHERE seq {among}

-- name: content
SELECT header, body FROM {schema}.content WHERE seq = $1

-- name: erase_content
DELETE FROM {schema}.content WHERE seq IN (SELECT seq FROM {schema}.webhook WHERE tenant = $1::text AND platform = $2::text AND event_type = $3::text)

-- name: erase_webhooks
DELETE FROM {schema}.webhook WHERE tenant = $1::text AND platform = $2::text AND event_type = $3::text RETURNING seq

-- name: erase_snapshot
DELETE FROM {schema}.snapshot WHERE tenant = $1::text AND platform = $2::text

-- name: pauses
SELECT receiver, platform, tenant, since, until, copied FROM {schema}.pause ORDER BY since

-- name: pause_add
-- A pause that is there already gets a new end.
INSERT INTO {schema}.pause (receiver, platform, tenant, since, until) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (receiver, platform, tenant) DO UPDATE SET until = excluded.until RETURNING receiver, platform, tenant, since, until, copied

-- name: pause_remove
-- If it ends until 4.
DELETE FROM {schema}.pause WHERE receiver = $1::text AND platform = $2::text AND tenant = $3::text AND until <= $4::bigint RETURNING since

-- name: list
-- 1 only below this seq, 2 the state (-1: any), 3 and 4 received from and before, 5 whether with content (1), 6 how many. The same for all lists.
-- Each has a twin whose name ends with _up: above this seq, the oldest first.
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint ORDER BY w.seq DESC LIMIT $6::bigint

-- name: list_attention
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.state {attention} AND w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint ORDER BY w.seq DESC LIMIT $6::bigint

-- name: previous
-- Of a webhook (1 to 3 its lane, 4 its number) its tenant's last snapshot before it that was taken in, and the last one that was accepted
-- (delivered, stored: 1), with its body.
SELECT * FROM (SELECT seq, CAST(0 AS bigint), {empty} FROM {schema}.webhook
	WHERE tenant = $1::text AND platform = $2::text AND event_type = $3::text AND seq < $4::bigint AND snapshot = 1 AND NOT (state {rejected}) ORDER BY seq DESC LIMIT 1) a
UNION ALL
SELECT * FROM (SELECT w.seq, CAST(1 AS bigint), c.body FROM {schema}.webhook w JOIN {schema}.content c ON c.seq = w.seq
	WHERE w.tenant = $1::text AND w.platform = $2::text AND w.event_type = $3::text AND w.seq < $4::bigint AND w.snapshot = 1 AND w.state {taken} ORDER BY w.seq DESC LIMIT 1) b

-- name: list_tenant
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.tenant = $7::text AND w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint ORDER BY w.seq DESC LIMIT $6::bigint

-- name: list_lane
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.tenant = $7::text AND w.platform = $8::text AND w.event_type = '' AND w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint
ORDER BY w.seq DESC LIMIT $6::bigint

-- name: waiting_behind
-- Those of the webhooks 1 before which another of their lane waits that was received from 2 on and before 3.
SELECT w.seq FROM {schema}.webhook w WHERE w.seq {among} AND (SELECT e.received FROM {schema}.webhook e
	WHERE e.tenant = w.tenant AND e.platform = w.platform AND e.event_type = w.event_type AND e.state {waiting} AND e.seq < w.seq
	ORDER BY e.seq DESC LIMIT 1) BETWEEN $2::bigint AND $3::bigint - 1

-- name: figures
SELECT receiver, CAST(sum(waiting) AS bigint), CAST(min(CASE WHEN waiting_since BETWEEN 0 AND {never} THEN waiting_since ELSE {never} END) AS bigint),
	CAST(sum(parked) AS bigint), CAST(sum(bytes) AS bigint),
	count(*) FILTER (WHERE last_result > 0 AND waiting > 0)
FROM {schema}.lane WHERE bytes > 0 GROUP BY receiver

-- name: bytes_used
SELECT receiver, CAST(sum(bytes) AS bigint) FROM {schema}.lane WHERE bytes > 0 GROUP BY receiver

-- name: lane_bytes
SELECT bytes FROM {schema}.lane WHERE tenant = $1::text AND platform = $2::text AND event_type = $3::text

-- name: failing
-- Of receiver 1, at whichever replica: how many lanes have begun to fail since it accepted something, when the first of these did, and when
-- it last accepted one. An acceptance later than 2 is from before the clock was set back, and says nothing. Then how many lanes wait behind a
-- failed try that began at 3 or later, or until a time after 4 for which the receiver has asked.
WITH accepted AS (SELECT coalesce((SELECT w.changed FROM {schema}.webhook w JOIN {schema}.lane l ON {of} WHERE w.state {finished} AND w.state {delivered} AND l.receiver = $1::text AND w.changed <= $2::bigint
	AND EXISTS (SELECT 1 FROM {schema}.lane f WHERE f.receiver = $1::text AND f.last_result > 0 AND f.due < {never}) ORDER BY w.changed DESC LIMIT 1), 0) AS at)
SELECT count(l.tenant), coalesce(min(l.failing_since), 0), a.at,
	(SELECT count(*) FROM {schema}.lane WHERE receiver = $1::text AND last_result > 0 AND due < {never} AND waiting > 0
		AND (last_try >= $3::bigint OR not_before > $4::bigint)) FROM accepted a
LEFT JOIN {schema}.lane l ON l.receiver = $1::text AND l.last_result > 0 AND l.due < {never} AND l.failing_since > a.at GROUP BY a.at

-- name: invalid_delete
-- Those whose last copies are the oldest: beyond so many, beyond so many bytes, or from before this time. But not one that another replica has
-- dealt with meanwhile, or that came there again.
DELETE FROM {schema}.webhook WHERE state {invalid} AND (seq, rank) IN (
	SELECT seq, rank FROM (SELECT seq, rank, changed, row_number() OVER newer AS count, sum(size) OVER newer AS bytes FROM {schema}.webhook WHERE state {invalid}
		WINDOW newer AS (ORDER BY rank DESC)) AS r
	WHERE count > $1::bigint OR bytes > $2::bigint OR changed < $3::bigint)
RETURNING seq, tenant, platform, event_type

-- name: invalid_count
SELECT count(*) FROM {schema}.webhook WHERE state {attention} AND state {invalid}

-- name: tenant_count
SELECT count(*), (SELECT count(*) FROM {schema}.snapshot WHERE features IS NULL) FROM {schema}.snapshot

-- name: tenants_unknown
-- Tenants whose features can't be read, those that are so for longest first.
SELECT platform, tenant, received FROM {schema}.snapshot WHERE features IS NULL ORDER BY received LIMIT $1::bigint

-- name: tenants_renamed
-- Tenants whose id came again, later, under another code of the same platform.
SELECT o.platform, o.tenant, n.tenant
FROM (SELECT platform, tenant_id FROM {schema}.snapshot WHERE tenant_id <> '' GROUP BY platform, tenant_id HAVING count(*) > 1) d
JOIN {schema}.snapshot o ON o.platform = d.platform AND o.tenant_id = d.tenant_id AND o.tenant_id <> ''
JOIN {schema}.snapshot n ON n.platform = d.platform AND n.tenant_id = d.tenant_id AND n.tenant_id <> ''
WHERE o.seq < n.seq AND n.seq = (SELECT max(seq) FROM {schema}.snapshot WHERE platform = d.platform AND tenant_id = d.tenant_id AND tenant_id <> '')
ORDER BY n.seq, o.seq LIMIT $1::bigint

-- name: tenants
-- 4 tenants after 1, 2. If 3 is 1: only those that are held up, parked or invalid; if it is 2: and whose features are unknown.
SELECT l.platform, l.tenant, coalesce(s.name, ''), coalesce(s.received, 0), l.waiting, l.parked, l.invalid, l.last_result, l.paused,
	CASE WHEN s.tenant IS NOT NULL AND s.features IS NULL THEN 1 ELSE 0 END
FROM {schema}.lane l LEFT JOIN {schema}.snapshot s ON s.tenant = l.tenant AND s.platform = l.platform
WHERE l.tenant <> '' AND (l.tail > 0 OR l.invalid > 0 OR l.paused > 0) AND (l.tenant, l.platform) > ($1::text, $2::text)
AND ($3::bigint = 0 OR {troubled} OR $3::bigint = 2 AND s.tenant IS NOT NULL AND s.features IS NULL) ORDER BY l.tenant, l.platform LIMIT $4::bigint

-- name: lanes_held_up
SELECT {lane} FROM {schema}.lane l WHERE l.last_result > 0 AND l.waiting > 0 ORDER BY l.waiting_since LIMIT $1::bigint

-- name: missed
SELECT began, ended, webhooks FROM {schema}.missed

-- name: missed_take
DELETE FROM {schema}.missed RETURNING began, ended, webhooks

-- name: missed_add
INSERT INTO {schema}.missed (began, ended, webhooks) VALUES ($1, $2, $3)

-- name: missed_end
-- What ended until 1, or, as it seems, a minute after now (2) or later: that was before the clock was set back. Less than a minute may only
-- mean that another replica has stored it after this transaction has read the time.
DELETE FROM {schema}.missed WHERE ended <= $1::bigint OR ended > $2::bigint + 60000000

-- name: gate_up_save
UPDATE {schema}.gate_up SET at = $1::bigint

-- name: finished_total
-- How many webhooks are finished, how large they are, and when the first was; of the newest so many, because there may be a million.
SELECT count(*), CAST(coalesce(sum(size), 0) AS bigint), coalesce(min(changed), {never}) FROM (
	SELECT size, changed FROM {schema}.webhook WHERE state {finished} ORDER BY changed DESC, seq DESC LIMIT $1::bigint) AS n

-- name: finished_oldest
SELECT seq, CAST(size AS bigint), changed FROM {schema}.webhook WHERE state {finished} ORDER BY changed, seq LIMIT $1::bigint

-- name: action_add
INSERT INTO {schema}.action (at, who, what, about, webhooks) VALUES ($1, $2, $3, $4, $5) RETURNING id

-- name: action_count
UPDATE {schema}.action SET webhooks = webhooks + $1::bigint WHERE id = $2::bigint

-- name: actions
SELECT id, at, who, what, about, webhooks FROM {schema}.action WHERE id < $1::bigint ORDER BY id DESC LIMIT $2::bigint

-- name: action_expire
DELETE FROM {schema}.action WHERE at < $1::bigint

-- name: run
SELECT id, mark, began, action, completed FROM {schema}.reconcile

-- name: run_begin
UPDATE {schema}.reconcile SET id = $1::text, mark = $2::bigint, began = $3::bigint, action = $4::bigint

-- name: run_complete
UPDATE {schema}.reconcile SET completed = $1::bigint

-- name: namesakes
-- Some of the other platforms (2 is its own) on which a tenant's code (1) is known.
SELECT platform FROM {schema}.snapshot WHERE tenant = $1::text AND platform <> $2::text ORDER BY platform LIMIT 3

-- name: known_before
-- Tenants of which nothing came since a run began (1), after a tenant (2, 3); 4 how many.
SELECT s.tenant, s.platform, coalesce(s.features::text, '') FROM {schema}.snapshot s JOIN {schema}.lane l ON l.tenant = s.tenant AND l.platform = s.platform AND l.event_type = ''
WHERE (s.tenant, s.platform) > ($2::text, $3::text) AND l.last <= (SELECT r.mark FROM {schema}.reconcile r WHERE r.id = $1::text)
ORDER BY s.tenant, s.platform LIMIT $4::bigint

-- name: telling
SELECT number FROM {schema}.told WHERE number = $1::bigint AND token = $2::bigint

-- name: last_telling
SELECT number, token FROM {schema}.told ORDER BY number DESC LIMIT 1

-- name: tellings_expire
-- Those that were the last one only before a time (1): some of them, found from the oldest on, because there may be millions of newer ones.
DELETE FROM {schema}.told WHERE number IN (SELECT number FROM {schema}.told WHERE number < (SELECT max(number) FROM {schema}.told
	WHERE number < coalesce((SELECT number FROM {schema}.told WHERE at >= $1::bigint ORDER BY number LIMIT 1), {never})) ORDER BY number LIMIT 50000)

-- name: trouble_keep
-- What a replica has noted while it could not write; unless somebody has written it.
INSERT INTO {schema}.trouble (about, replica, began, noticed, seen, ended, told, named, words)
SELECT $1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::text, $9::text
WHERE NOT EXISTS (SELECT 1 FROM {schema}.trouble WHERE about = $1::text AND noticed <= $5::bigint AND (ended = 0 OR ended >= $4::bigint))

-- name: trouble_again
-- It is still wrong, or again: what was over for less than a minute (since 4) goes on, unless that was said. 3 is now.
UPDATE {schema}.trouble SET replica = $2::text, seen = $3::bigint, ended = 0, named = $5::text, words = $6::text
WHERE about = $1::text AND noticed = (SELECT max(noticed) FROM {schema}.trouble WHERE about = $1::text)
AND (ended = 0 OR ended > $4::bigint AND told < 2 AND NOT EXISTS (SELECT 1 FROM {schema}.trouble WHERE about = $1::text AND ended = 0))

-- name: trouble_new
INSERT INTO {schema}.trouble (about, replica, began, noticed, seen, told, named, words)
SELECT $1::text, $2::text, $3::bigint, $4::bigint, $4::bigint, $5::bigint, $6::text, $7::text
WHERE NOT EXISTS (SELECT 1 FROM {schema}.trouble WHERE about = $1::text AND ended = 0) ON CONFLICT DO NOTHING

-- name: troubles_end
-- Those that nobody has found since a time (1), also of replicas that are gone.
UPDATE {schema}.trouble SET ended = seen WHERE ended = 0 AND seen < $1::bigint

-- name: troubles_claim
-- Who gets a row says it: that it has been wrong since before a time (1), or over since before it. Nobody says anything while somebody
-- has begun to after that time. 2 is now.
UPDATE {schema}.trouble SET claimed = $2::bigint WHERE claimed <= $1::bigint
AND (ended = 0 AND told = 0 AND noticed <= $1::bigint OR ended > 0 AND ended <= $1::bigint AND told = 1)
AND NOT EXISTS (SELECT 1 FROM {schema}.trouble WHERE claimed > $1::bigint AND claimed <= $2::bigint)
RETURNING about, replica, began, noticed, seen, ended, told, words

-- name: trouble_told
UPDATE {schema}.trouble SET told = $3::bigint WHERE about = $1::text AND noticed = $2::bigint AND told < $3::bigint AND ($3::bigint = 1 OR ended > 0)

-- name: troubles_since
-- What is not over, and what ended since a time (1).
SELECT about, replica, began, noticed, seen, ended, told, words FROM {schema}.trouble
WHERE ended = 0 OR ended >= $1::bigint ORDER BY ended DESC, about LIMIT 1000

-- name: troubles_erase
DELETE FROM {schema}.trouble WHERE replace(named, $1::text, '') <> named

-- name: troubles_expire
DELETE FROM {schema}.trouble WHERE ended > 0 AND ended < $1::bigint

-- name: catch_up_begin
-- 1 now, 2 how long this replica may be silent.
UPDATE {schema}.catch_up SET until = $2::bigint WHERE until <= $1::bigint OR until > $2::bigint RETURNING newest, oldest

-- name: catch_up_go_on
UPDATE {schema}.catch_up SET until = $1::bigint

-- name: catch_up_end
UPDATE {schema}.catch_up SET newest = $1::bigint, oldest = $2::bigint, until = 0
