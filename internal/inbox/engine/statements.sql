-- The statements that both engines have; those of each engine are beside it. Each is named after the question that it answers or the
-- change that it makes. They are spelled as PostgreSQL wants them, with casts that SQLite's engine drops. What is in braces is replaced:
--
-- {rows a int, b text}, {rows lane}: a table n of what the statement is called with, with these columns, or those of a table. On PostgreSQL it
--   has one array for each column; SQLite runs the statement once for each row. What follows are other arguments.
-- {columns lane}, {values lane}, {set lane}, {key lane}, {excluded lane}: the columns of a table, and n's values for them.
-- {seq x}: x is a number; a provisional one becomes one of those that this transaction has taken.
-- {lane} and {webhook}: the columns as they are read; {of}: l is the lane of w; {open}: the lanes in which something waits or is parked;
-- {lock} and {skip}: locks rows that nobody else has locked.
-- {waiting} and {finished} behind a column are conditions, see package state.

-- name: numbers
-- So many (1). From here on everybody else who wants some waits for the commit.
UPDATE {schema}.number SET base = last, last = last + $1::bigint RETURNING base

-- name: moved
-- 1: the last numbers were taken elsewhere.
SELECT CASE WHEN home = {home} THEN 0 ELSE 1 END FROM {schema}.number

-- name: era_add
INSERT INTO {schema}.era (since, token) SELECT base, $1::bigint FROM {schema}.number

-- name: era_home
UPDATE {schema}.number SET home = {home}

-- name: line
-- The last number, and the era that it is in.
SELECT n.last, (SELECT token FROM {schema}.era ORDER BY since DESC LIMIT 1) FROM {schema}.number n

-- name: era_end
-- How far the era with token 1 went.
SELECT coalesce((SELECT min(x.since) FROM {schema}.era x WHERE x.since > e.since), (SELECT last FROM {schema}.number)) FROM {schema}.era e WHERE e.token = $1::bigint

-- name: eras_expire
DELETE FROM {schema}.era WHERE since < (SELECT since FROM {schema}.era ORDER BY since DESC LIMIT 1 OFFSET 10000)

-- name: lane_add
INSERT INTO {schema}.lane (tenant, platform, event_type) SELECT n.tenant, n.platform, n.event_type FROM {rows tenant text, platform text, event_type text}
WHERE NOT EXISTS (SELECT 1 FROM {schema}.lane l WHERE l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type)
ORDER BY 1, 2, 3 ON CONFLICT DO NOTHING

-- name: lane_lock
SELECT {lane} FROM {rows tenant text, platform text, event_type text}
JOIN {schema}.lane l ON l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type
ORDER BY l.tenant, l.platform, l.event_type {lock l}

-- name: lanes_there
SELECT l.tenant, l.platform, l.event_type FROM {rows tenant text, platform text, event_type text}
JOIN {schema}.lane l ON l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type

-- name: lane_first
-- The first waiting webhook of each lane in which more wait than least, and that is not the one in but, with its content up to a size. It is not a part of lane_lock, which
-- would see what was there before it had the lock.
SELECT {webhook}, c.header, c.body FROM {rows tenant text, platform text, event_type text, but int, least int, size int}
JOIN {schema}.lane l ON l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type AND l.waiting > n.least
JOIN {schema}.webhook w ON w.seq = (SELECT f.seq FROM {schema}.webhook f WHERE f.tenant = l.tenant AND f.platform = l.platform AND f.event_type = l.event_type
	AND f.state {waiting} AND f.seq <> n.but ORDER BY f.seq LIMIT 1)
LEFT JOIN {schema}.content c ON c.seq = w.seq AND w.size <= n.size

-- name: lane_open
-- The parked snapshots and the invalid webhooks of lanes.
SELECT {webhook} FROM {rows tenant text, platform text, event_type text}
JOIN {schema}.lane l ON l.tenant = n.tenant AND l.platform = n.platform AND l.event_type = n.event_type AND l.parked + l.invalid > 0
JOIN {schema}.webhook w ON {of} AND w.state {attention} AND (w.snapshot = 1 OR w.state {invalid})

-- name: lane_save
UPDATE {schema}.lane AS t SET {set lane} FROM {rows lane} WHERE {key lane}

-- name: claim
-- 1 the receiver, 2 now, 3 whether leases that have ended may be taken over (1), how many lanes: 4 that have not failed, 5 that have.
SELECT {lane} FROM (
	SELECT * FROM (SELECT * FROM {schema}.lane l WHERE receiver = $1::text AND due < {never} AND failures = 0
		AND (owner = {empty} AND not_before <= $2::bigint OR owner <> {empty} AND due <= $2::bigint AND $3::bigint = 1)
		AND NOT EXISTS (SELECT 1 FROM {schema}.pause p WHERE p.receiver = '' AND p.platform = l.platform AND p.tenant = l.tenant AND p.until > $2::bigint)
		ORDER BY due LIMIT $4::bigint {skip}) a
	UNION ALL
	SELECT * FROM (SELECT * FROM {schema}.lane l WHERE receiver = $1::text AND due <= $2::bigint AND due < {never} AND failures > 0
		AND (owner = {empty} OR $3::bigint = 1)
		AND NOT EXISTS (SELECT 1 FROM {schema}.pause p WHERE p.receiver = '' AND p.platform = l.platform AND p.tenant = l.tenant AND p.until > $2::bigint)
		ORDER BY due LIMIT $5::bigint {skip}) b) l
WHERE NOT EXISTS (SELECT 1 FROM {schema}.pause p WHERE p.platform = '' AND p.tenant = '' AND (p.receiver = '' OR p.receiver = $1::text) AND p.until > $2::bigint)

-- name: lane_revive
-- Lanes of receiver 1 that began to fail after 2 are due now (3), unless it has asked for a later time.
UPDATE {schema}.lane SET due = $3::bigint WHERE (tenant, platform, event_type) IN (SELECT tenant, platform, event_type FROM {schema}.lane
	WHERE receiver = $1::text AND due < {never} AND failures > 0 AND failing_since > $2::bigint AND due > $3::bigint AND not_before <= $3::bigint AND owner = {empty} {skip})

-- name: lane_due_correct
-- What is due later than is possible: the clock was set back since. 1 now, 2 the latest end of a backoff, 3 of a Retry-After, 4 of a lease.
UPDATE {schema}.lane SET due = $1::bigint, not_before = 0 WHERE (tenant, platform, event_type) IN (SELECT tenant, platform, event_type FROM {schema}.lane
	WHERE due < {never} AND failures = 0 AND (owner = {empty} AND not_before > $3::bigint OR owner <> {empty} AND due > $4::bigint) {skip})
	OR (tenant, platform, event_type) IN (SELECT tenant, platform, event_type FROM {schema}.lane
	WHERE due < {never} AND failures > 0 AND (owner = {empty} AND due > $2::bigint AND (due > not_before OR due > $3::bigint) OR owner <> {empty} AND due > $4::bigint) {skip})

-- name: lane_route
-- Lanes whose webhooks wait or are parked get receiver 1, if they have another one: those of the platforms 2 (3: 1), or of all others (3: 0).
-- Not those that somebody delivers: 4 now, 5 whether leases that have ended may be taken over (1).
UPDATE {schema}.lane SET receiver = $1::text, owner = {empty}, leased = 0, held_at = 0, tail_digest = CASE WHEN held_at > 0 THEN {empty} ELSE tail_digest END,
	failures = 0, failing_since = 0, not_before = 0, due = CASE WHEN due < {never} THEN $4::bigint ELSE due END
WHERE (tenant, platform, event_type) IN (SELECT tenant, platform, event_type FROM {schema}.lane WHERE (owner = {empty} OR due <= $4::bigint AND $5::bigint = 1)
	AND (tenant, platform, event_type) IN (SELECT l.tenant, l.platform, l.event_type FROM {open}
		WHERE l.receiver <> $1::text AND (l.platform IN {list $2}) = ($3::bigint = 1)) {skip})

-- name: receivers
SELECT name, accepted FROM {schema}.receiver

-- name: receiver_save
INSERT INTO {schema}.receiver (name, accepted) SELECT n.name, n.accepted FROM {rows name text, accepted int} WHERE true
ON CONFLICT (name) DO UPDATE SET accepted = excluded.accepted

-- name: unserved
-- Some platforms whose webhooks wait, and that no receiver takes.
SELECT DISTINCT platform FROM (SELECT platform FROM {schema}.lane WHERE receiver = '' AND due < {never} AND failures = 0 LIMIT 1000) AS l ORDER BY platform LIMIT 5

-- name: lanes_of_tenant
SELECT {lane} FROM {schema}.lane l WHERE l.tenant = $1::text AND l.event_type = ''

-- name: lane_count
SELECT count(*) FROM {schema}.webhook WHERE tenant = $1::text AND platform = $2::text AND event_type = ''

-- name: webhooks
-- With their contents.
SELECT {webhook}, c.header, c.body FROM {rows id int} JOIN {schema}.webhook w ON w.seq = n.id LEFT JOIN {schema}.lane l ON {of} LEFT JOIN {schema}.content c ON c.seq = w.seq

-- name: invalid_copies
SELECT {webhook} FROM {rows digest bytes} JOIN {schema}.webhook w ON w.state {invalid} AND w.digest = n.digest LEFT JOIN {schema}.lane l ON {of}

-- name: webhook_add
INSERT INTO {schema}.webhook ({columns webhook}) SELECT {values webhook} FROM {rows webhook}

-- name: content_add
INSERT INTO {schema}.content ({columns content}) SELECT {values content} FROM {rows content}

-- name: webhook_save
UPDATE {schema}.webhook AS w SET state = n.state, rank = {seq n.rank}, changed = n.changed, why = n.why, record = n.record
FROM {rows seq int, state int, rank int, changed int, why text, record text} WHERE w.seq = {seq n.seq}

-- name: content
SELECT header, body FROM {schema}.content WHERE seq = $1

-- name: erase_content
DELETE FROM {schema}.content WHERE seq IN (SELECT seq FROM {schema}.webhook WHERE tenant = $1::text AND platform = $2::text AND event_type = '')

-- name: erase_webhooks
DELETE FROM {schema}.webhook WHERE tenant = $1::text AND platform = $2::text AND event_type = ''

-- name: snapshot_save
INSERT INTO {schema}.snapshot ({columns snapshot}) SELECT {values snapshot} FROM {rows snapshot} WHERE true
ON CONFLICT (tenant, platform) DO UPDATE SET {excluded snapshot}

-- name: snapshots
SELECT platform, tenant, seq, uuid, received, name, coalesce(features::text, ''), change, source FROM {schema}.snapshot WHERE tenant = $1::text AND erased = 0

-- name: snapshots_of
SELECT s.platform, s.tenant, s.seq, s.uuid, s.received, s.name, coalesce(s.features::text, ''), s.change, s.source FROM {rows tenant text, platform text}
JOIN {schema}.snapshot s ON s.tenant = n.tenant AND s.platform = n.platform AND s.erased = 0

-- name: elsewhere
-- The other platforms on which the codes of tenants are known.
SELECT n.tenant, n.platform, s.platform FROM {rows tenant text, platform text}
JOIN {schema}.snapshot s ON s.tenant = n.tenant AND s.platform <> n.platform AND s.erased = 0

-- name: changes
-- Tenants that have changed after a number (1), 2 how many, 4 about how many bytes; up to the number 3 without those that were erased.
SELECT seq, erased, rows, platform, tenant, uuid, received, name, coalesce(features::text, '')
FROM (SELECT s.*, count(*) OVER () AS rows, sum(s.size) OVER (ORDER BY s.seq) - s.size AS before
	FROM (SELECT s.*, 200 + {size name} + {size features} AS size FROM {schema}.snapshot s WHERE s.seq > $1::bigint AND (s.erased = 0 OR s.seq > $3::bigint)
		ORDER BY s.seq LIMIT $2::bigint) s) s
WHERE before < $4::bigint ORDER BY seq

-- name: namesakes
-- Some of the other platforms (2 is its own) on which a tenant's code (1) is known.
SELECT platform FROM {schema}.snapshot WHERE tenant = $1::text AND platform <> $2::text AND erased = 0 ORDER BY platform LIMIT 3

-- name: tenant_count
SELECT count(*), (SELECT count(*) FROM {schema}.snapshot WHERE features IS NULL AND erased = 0) FROM {schema}.snapshot WHERE erased = 0

-- name: tenants_unknown
-- Tenants whose features can't be read, those that are so for longest first.
SELECT platform, tenant, received FROM {schema}.snapshot WHERE features IS NULL AND erased = 0 ORDER BY received LIMIT $1::bigint

-- name: tenants_renamed
-- Tenants whose id came again, later, under another code of the same platform.
SELECT o.platform, o.tenant, n.tenant
FROM (SELECT platform, tenant_id, max(seq) AS seq FROM {schema}.snapshot WHERE tenant_id <> '' GROUP BY platform, tenant_id HAVING count(*) > 1) d
JOIN {schema}.snapshot n ON n.seq = d.seq
JOIN {schema}.snapshot o ON o.platform = d.platform AND o.tenant_id = d.tenant_id AND o.tenant_id <> '' AND o.seq < d.seq
ORDER BY n.seq, o.seq LIMIT $1::bigint

-- name: tenants
-- 4 tenants after 1, 2. If 3 is 1: only those that are held up, parked or invalid; if it is 2: and whose features are unknown.
SELECT l.platform, l.tenant, coalesce(s.name, ''), coalesce(s.received, 0), l.waiting, l.parked, l.invalid, l.failures,
	CASE WHEN s.tenant IS NOT NULL AND s.features IS NULL THEN 1 ELSE 0 END
FROM {schema}.lane l LEFT JOIN {schema}.snapshot s ON s.tenant = l.tenant AND s.platform = l.platform AND s.erased = 0
WHERE l.tenant <> '' AND (l.tail > 0 OR l.invalid > 0) AND (l.tenant, l.platform) > ($1::text, $2::text)
AND ($3::bigint = 0 OR l.parked + l.invalid > 0 OR l.failures > 0 OR $3::bigint = 2 AND s.tenant IS NOT NULL AND s.features IS NULL) ORDER BY l.tenant, l.platform LIMIT $4::bigint

-- name: known_before
-- Tenants of which nothing came after a mark (1), after a tenant (2, 3); 4 how many.
SELECT s.tenant, s.platform, coalesce(s.features::text, '') FROM {schema}.snapshot s JOIN {schema}.lane l ON l.tenant = s.tenant AND l.platform = s.platform AND l.event_type = ''
WHERE (s.tenant, s.platform) > ($2::text, $3::text) AND s.erased = 0 AND l.last <= $1::bigint
ORDER BY s.tenant, s.platform LIMIT $4::bigint

-- name: lanes_held_up
-- Those whose next try is later than now (2). One that is under way, or due, may be over in a moment.
SELECT {lane} FROM {schema}.lane l WHERE l.due < {never} AND l.failures > 0 AND l.owner = {empty} AND l.due > $2::bigint ORDER BY l.waiting_since LIMIT $1::bigint

-- name: figures
-- Of each receiver: how many webhooks wait, since when, how many are parked, their bytes, and how many lanes wait for a later try than now (1).
SELECT l.receiver, CAST(sum(l.waiting) AS bigint), CAST(min(CASE WHEN l.waiting_since BETWEEN 0 AND {never} THEN l.waiting_since ELSE {never} END) AS bigint),
	CAST(sum(l.parked) AS bigint), CAST(sum(l.bytes) AS bigint), count(*) FILTER (WHERE l.failures > 0 AND l.owner = {empty} AND l.due > $1::bigint AND l.due < {never})
FROM {open} GROUP BY l.receiver

-- name: bytes_used
SELECT l.receiver, CAST(sum(l.bytes) AS bigint) FROM {open} GROUP BY l.receiver

-- name: failing
-- Of each receiver: how many lanes have begun to fail since it accepted something (which may be a tenth of a second later than it says), and when the first of
-- these did. An acceptance later than 1 is from before the clock was set back, and says nothing.
SELECT l.receiver, count(*), min(l.failing_since) FROM {schema}.lane l LEFT JOIN {schema}.receiver r ON r.name = l.receiver AND r.accepted <= $1::bigint
WHERE l.due < {never} AND l.failures > 0 AND l.failing_since > coalesce(r.accepted + 100000, 0) GROUP BY l.receiver

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

-- name: list_tenant
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.tenant = $7::text AND w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint ORDER BY w.seq DESC LIMIT $6::bigint

-- name: list_lane
SELECT {webhook}, c.header, c.body FROM {schema}.webhook w LEFT JOIN {schema}.lane l ON {of}
LEFT JOIN {schema}.content c ON c.seq = w.seq AND $5::bigint = 1
WHERE w.tenant = $7::text AND w.platform = $8::text AND w.event_type = '' AND w.seq < $1::bigint AND ($2::bigint < 0 OR w.state = $2::bigint) AND w.received >= $3::bigint AND w.received < $4::bigint
ORDER BY w.seq DESC LIMIT $6::bigint

-- name: previous
-- Of a webhook (1 to 3 its lane, 4 its number) its tenant's last snapshot before it that was taken in, and the last one that was accepted
-- (delivered, stored: 1), with its body.
SELECT * FROM (SELECT seq, CAST(0 AS bigint), {empty} FROM {schema}.webhook
	WHERE tenant = $1::text AND platform = $2::text AND event_type = $3::text AND seq < $4::bigint AND snapshot = 1 AND NOT (state {rejected}) ORDER BY seq DESC LIMIT 1) a
UNION ALL
SELECT * FROM (SELECT w.seq, CAST(1 AS bigint), c.body FROM {schema}.webhook w JOIN {schema}.content c ON c.seq = w.seq
	WHERE w.tenant = $1::text AND w.platform = $2::text AND w.event_type = $3::text AND w.seq < $4::bigint AND w.snapshot = 1 AND w.state {taken} ORDER BY w.seq DESC LIMIT 1) b

-- name: waiting_behind
-- Those of some webhooks before which another of their lane waits that was received from 1 on and before 2.
SELECT w.seq FROM {rows id int, since int, until int} JOIN {schema}.webhook w ON w.seq = n.id WHERE (SELECT e.received FROM {schema}.webhook e
	WHERE e.tenant = w.tenant AND e.platform = w.platform AND e.event_type = w.event_type AND e.state {waiting} AND e.seq < w.seq
	ORDER BY e.seq DESC LIMIT 1) BETWEEN n.since AND n.until - 1

-- name: invalid_count
SELECT count(*) FROM {schema}.webhook WHERE state {attention} AND state {invalid}

-- name: invalid_oldest
-- Those whose last copies are the oldest: beyond so many, beyond so many bytes, or from before this time.
SELECT seq, tenant, platform, event_type FROM (SELECT seq, tenant, platform, event_type, changed, row_number() OVER newer AS count, sum(size) OVER newer AS bytes
	FROM {schema}.webhook WHERE state {attention} AND state {invalid} WINDOW newer AS (ORDER BY rank DESC)) AS r
WHERE count > $1::bigint OR bytes > $2::bigint OR changed < $3::bigint ORDER BY seq LIMIT 200

-- name: finished_total
-- How many webhooks are finished, how large they are, and when the first was; of the newest so many, because there may be a million.
SELECT count(*), CAST(coalesce(sum(size), 0) AS bigint), coalesce(min(changed), {never}) FROM (
	SELECT size, changed FROM {schema}.webhook WHERE state {finished} ORDER BY changed DESC, seq DESC LIMIT $1::bigint) AS n

-- name: finished_oldest
SELECT seq, CAST(size AS bigint), changed FROM {schema}.webhook WHERE state {finished} ORDER BY changed, seq LIMIT $1::bigint

-- name: webhook_delete
-- Those that are finished still, and their contents.
DELETE FROM {schema}.webhook WHERE seq IN (SELECT n.id FROM {rows id int}) AND state {finished}

-- name: content_delete
DELETE FROM {schema}.content WHERE seq IN (SELECT n.id FROM {rows id int} WHERE NOT EXISTS (SELECT 1 FROM {schema}.webhook w WHERE w.seq = n.id))

-- name: pauses
SELECT receiver, platform, tenant, since, until, copied FROM {schema}.pause ORDER BY since

-- name: pause_add
-- A pause that is there already gets a new end.
INSERT INTO {schema}.pause (receiver, platform, tenant, since, until) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (receiver, platform, tenant) DO UPDATE SET until = excluded.until RETURNING receiver, platform, tenant, since, until, copied

-- name: pause_remove
-- If it ends until 4.
DELETE FROM {schema}.pause WHERE receiver = $1::text AND platform = $2::text AND tenant = $3::text AND until <= $4::bigint RETURNING since

-- name: missed
SELECT began, ended, webhooks, gate_up FROM {schema}.missed

-- name: missed_lock
-- Of two gates that come up at once one finds the outage.
UPDATE {schema}.missed SET gate_up = gate_up RETURNING began, ended, webhooks, gate_up

-- name: missed_save
UPDATE {schema}.missed SET began = $1::bigint, ended = $2::bigint, webhooks = $3::bigint, gate_up = $4::bigint

-- name: missed_end
-- What ended until 1, or, as it seems, a minute after now (2) or later: that was before the clock was set back. Less than a minute may only
-- mean that another replica has stored it after this transaction has read the time.
UPDATE {schema}.missed SET began = 0, ended = 0, webhooks = 0 WHERE ended > 0 AND (ended <= $1::bigint OR ended > $2::bigint + 60000000)

-- name: action_add
INSERT INTO {schema}.action (at, who, what, about, webhooks) VALUES ($1, $2, $3, $4, $5) RETURNING id

-- name: action_count
UPDATE {schema}.action SET webhooks = webhooks + $1::bigint WHERE id = $2::bigint

-- name: actions
SELECT id, at, who, what, about, webhooks FROM {schema}.action WHERE id < $1::bigint ORDER BY id DESC LIMIT $2::bigint

-- name: actions_expire
DELETE FROM {schema}.action WHERE at < $1::bigint

-- name: compared
SELECT newest, oldest, reconciled FROM {schema}.compared

-- name: reconciled
UPDATE {schema}.compared SET reconciled = $1::bigint

-- name: catch_up_begin
-- 1 now, 2 how long this replica may be silent.
UPDATE {schema}.compared SET until = $2::bigint WHERE until <= $1::bigint OR until > $2::bigint RETURNING newest, oldest

-- name: catch_up_go_on
UPDATE {schema}.compared SET until = $1::bigint

-- name: catch_up_end
UPDATE {schema}.compared SET newest = $1::bigint, oldest = $2::bigint, until = 0

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

-- name: touch
-- A write that changes nothing, to find out whether the database can be written.
UPDATE {schema}.schema_version SET version = version
