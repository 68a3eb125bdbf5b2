-- What is special to SQLite; the tables are in engine/001.sql.

-- What others may ask, as on PostgreSQL; as_of is text here. Features that are damaged are unknown, of that tenant alone.
CREATE VIEW tenants AS
SELECT platform, tenant, name, strftime('%Y-%m-%dT%H:%M:%S', received / 1000000, 'unixepoch') || printf('.%06dZ', received % 1000000) AS as_of,
	uuid AS webhook, CASE WHEN json_valid(features) THEN json_type(features) = 'array' AND NOT EXISTS (SELECT 1 FROM json_each(features) f
		WHERE f.type <> 'object' OR json_type(f.value, '$.code') IS NOT 'text' OR json_type(f.value, '$.limit') NOT IN ('null', 'integer')) ELSE 0 END AS features_known
FROM snapshot WHERE erased = 0;
CREATE VIEW entitlements AS
SELECT t.platform, t.tenant, json_extract(f.value, '$.code') AS feature, coalesce(json_extract(f.value, '$.name'), '') AS name,
	json_extract(f.value, '$.limit') AS "limit", coalesce(json_extract(f.value, '$.value'), '') AS value, t.as_of, t.webhook
FROM tenants t JOIN snapshot s ON s.tenant = t.tenant AND s.platform = t.platform
	JOIN json_each(CASE WHEN t.features_known THEN s.features ELSE '[]' END) f;
