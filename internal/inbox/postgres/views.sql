-- What others may ask: the views tenants and entitlements, and the function allowed. Their names, columns and types never change (a view may
-- get more columns, at its end). If you change this file, add one to viewsVersion. It runs on a database that is in use: an object is
-- replaced and never dropped, so that what was granted stays, and so does what others have built on it.
--
-- All of them have their owner's rights, so a role that may use them needs no right on usher's tables.

CREATE OR REPLACE VIEW {schema}.tenants AS
SELECT s.platform COLLATE "default" AS platform, s.tenant COLLATE "default" AS tenant, s.name COLLATE "default" AS name,
	to_timestamp(s.received / 1000000) + s.received % 1000000 * interval '1 microsecond' AS as_of, -- exact, whereas received / 1e6 is rounded
	s.uuid COLLATE "default" AS webhook, s.features IS NOT NULL AS features_known
FROM {schema}.snapshot s WHERE s.erased = 0;

CREATE OR REPLACE VIEW {schema}.entitlements AS
SELECT s.platform COLLATE "default" AS platform, s.tenant COLLATE "default" AS tenant, f.code AS feature, coalesce(f.name, '') AS name,
	f."limit", coalesce(f.value, '') AS value,
	to_timestamp(s.received / 1000000) + s.received % 1000000 * interval '1 microsecond' AS as_of, s.uuid COLLATE "default" AS webhook
FROM {schema}.snapshot s CROSS JOIN LATERAL jsonb_to_recordset(s.features) AS f (code text, name text, "limit" bigint, value text)
WHERE s.erased = 0;

-- plpgsql keeps its plan for as long as a session lasts, which makes a call ten times as fast as in SQL. enable_seqscan: such a plan may have
-- been made while the table was small. $1 and not its name: tenant = tenant is true of every row.
CREATE OR REPLACE FUNCTION {schema}.allowed(tenant text, feature text, quantity bigint DEFAULT NULL, platform text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER COST 1000 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
	RETURN (SELECT CASE WHEN $2 <> '' AND coalesce($3, 0) >= 0 AND count(*) = 1 THEN
		bool_and(CASE WHEN s.features IS NOT NULL THEN EXISTS (
			SELECT FROM jsonb_to_recordset(s.features) AS f (code text, "limit" bigint) WHERE f.code = $2 AND (f."limit" IS NULL OR f."limit" >= coalesce($3, 0))) END) END
	FROM (
		SELECT o.features FROM {schema}.snapshot o WHERE o.tenant = $1 AND o.platform = $4 AND o.erased = 0
		UNION ALL
		(SELECT o.features FROM {schema}.snapshot o WHERE o.tenant = $1 AND o.erased = 0 AND $4 IS NULL LIMIT 2)) s);
END $$;

REVOKE ALL ON {schema}.tenants, {schema}.entitlements FROM PUBLIC;
REVOKE ALL ON FUNCTION {schema}.allowed(text, text, bigint, text) FROM PUBLIC;
