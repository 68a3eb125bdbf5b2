-- What is special to SQLite; the tables are in engine/001.sql.

CREATE INDEX lane_due ON lane (receiver, last_result, due, waiting, parked, bytes, waiting_since) WHERE bytes > 0; -- the last four are for figures

-- The last number that a webhook got.
CREATE TABLE number (last INTEGER NOT NULL);
INSERT INTO number VALUES (0);

-- What others may ask, as on PostgreSQL; as_of is text here. Features that are damaged are unknown, of that tenant alone.
CREATE VIEW tenants AS
SELECT platform, tenant, name, strftime('%Y-%m-%dT%H:%M:%S', received / 1000000, 'unixepoch') || printf('.%06dZ', received % 1000000) AS as_of,
	uuid AS webhook, CASE WHEN json_valid(features) THEN json_type(features) = 'array' AND NOT EXISTS (SELECT 1 FROM json_each(features) f
		WHERE f.type <> 'object' OR json_type(f.value, '$.code') IS NOT 'text' OR json_type(f.value, '$.limit') NOT IN ('null', 'integer')) ELSE 0 END AS features_known
FROM snapshot;
CREATE VIEW entitlements AS
SELECT t.platform, t.tenant, json_extract(f.value, '$.code') AS feature, coalesce(json_extract(f.value, '$.name'), '') AS name,
	json_extract(f.value, '$.limit') AS "limit", coalesce(json_extract(f.value, '$.value'), '') AS value, t.as_of, t.webhook
FROM tenants t JOIN snapshot s ON s.tenant = t.tenant AND s.platform = t.platform
	JOIN json_each(CASE WHEN t.features_known THEN s.features ELSE '[]' END) f;

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
