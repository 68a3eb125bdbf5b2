-- What is special to SQLite; the tables are in engine/001.sql.

CREATE INDEX lane_due ON lane (receiver, last_result, due, waiting, parked, bytes, waiting_since) WHERE bytes > 0; -- the last four are for figures

-- The last number that a webhook got.
CREATE TABLE number (last INTEGER NOT NULL);
INSERT INTO number VALUES (0);

-- What others may ask, as on PostgreSQL; as_of is text here.
CREATE VIEW tenants AS
SELECT platform, tenant, name, strftime('%Y-%m-%dT%H:%M:%S', received / 1000000, 'unixepoch') || printf('.%06dZ', received % 1000000) AS as_of,
	uuid AS webhook, features IS NOT NULL AS features_known
FROM snapshot;
CREATE VIEW entitlements AS
SELECT s.platform, s.tenant, json_extract(f.value, '$.code') AS feature, coalesce(json_extract(f.value, '$.name'), '') AS name,
	json_extract(f.value, '$.limit') AS "limit", coalesce(json_extract(f.value, '$.value'), '') AS value,
	strftime('%Y-%m-%dT%H:%M:%S', s.received / 1000000, 'unixepoch') || printf('.%06dZ', s.received % 1000000) AS as_of, s.uuid AS webhook
FROM snapshot s, json_each(s.features) f;

-- Changes are told at once: see changes.go. A new row of told gets the number after the highest one.
CREATE TRIGGER snapshot_added AFTER INSERT ON snapshot BEGIN
	INSERT INTO told (token, at) VALUES (random() & 9223372036854775807, unixepoch() * 1000000);
	INSERT INTO change VALUES (new.tenant, new.platform, last_insert_rowid(), new.seq) ON CONFLICT (tenant, platform) DO UPDATE SET number = excluded.number, seq = excluded.seq;
END;
CREATE TRIGGER snapshot_changed AFTER UPDATE ON snapshot BEGIN
	INSERT INTO told (token, at) VALUES (random() & 9223372036854775807, unixepoch() * 1000000);
	INSERT INTO change VALUES (new.tenant, new.platform, last_insert_rowid(), new.seq) ON CONFLICT (tenant, platform) DO UPDATE SET number = excluded.number, seq = excluded.seq;
END;
CREATE TRIGGER snapshot_erased AFTER DELETE ON snapshot BEGIN
	INSERT INTO told (token, at) VALUES (random() & 9223372036854775807, unixepoch() * 1000000);
	INSERT INTO change VALUES (old.tenant, old.platform, last_insert_rowid(), 0) ON CONFLICT (tenant, platform) DO UPDATE SET number = excluded.number, seq = excluded.seq;
END;
INSERT INTO told VALUES (0, random() & 9223372036854775807, 0);
