-- What is special to PostgreSQL; the tables are in engine/001.sql.

ALTER TABLE {schema}.lane SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.webhook SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.snapshot SET (fillfactor = 80);
-- What is no list of features, a jsonb null, say, would fail every query of the views, for all tenants.
ALTER TABLE {schema}.snapshot ADD CHECK (jsonb_typeof(features) = 'array' AND NOT jsonb_path_exists(features, '$[*] ? (!(@.type() == "object" && @.code.type() == "string"
	&& (!exists(@.limit) || @.limit.type() == "null" || @.limit.type() == "number" && @.limit >= 0 && @.limit <= 9007199254740991 && @.limit.floor() == @.limit)))'));
ALTER TABLE {schema}.content SET (toast_tuple_target = 8160);
ALTER TABLE {schema}.content ALTER body SET STORAGE EXTERNAL; -- compressing costs more than it saves
CREATE INDEX lane_due ON {schema}.lane (receiver, last_result, due) WHERE bytes > 0; -- also for figures
-- For the views, whose columns have the database's own collation, as the columns of other tables that they are joined with have. It
-- compares bytes: an index in the order of that collation breaks when the collation changes with the operating system.
CREATE INDEX snapshot_view ON {schema}.snapshot ((tenant COLLATE "default") text_pattern_ops, (platform COLLATE "default") text_pattern_ops);

-- The numbers of webhooks.
CREATE SEQUENCE {schema}.number CACHE 1;

-- Changes. Whatever changes a snapshot leaves a row here, which makes nobody wait: see changes.go. There is no index, since a telling takes all.
CREATE TABLE {schema}.changed (
	id       bigint GENERATED ALWAYS AS IDENTITY,
	tenant   text COLLATE "C" NOT NULL,
	platform text COLLATE "C" NOT NULL
);
ALTER TABLE {schema}.changed REPLICA IDENTITY FULL; -- else a publication of all tables would refuse its DELETE
ALTER TABLE {schema}.changed SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.change SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE FUNCTION {schema}.note_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_OP = 'DELETE' THEN
		INSERT INTO {schema}.changed (tenant, platform) VALUES (OLD.tenant, OLD.platform);
	ELSE
		INSERT INTO {schema}.changed (tenant, platform) VALUES (NEW.tenant, NEW.platform);
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER note_change AFTER INSERT OR UPDATE OR DELETE ON {schema}.snapshot FOR EACH ROW EXECUTE FUNCTION {schema}.note_change();
ALTER TABLE {schema}.snapshot ALTER features SET STORAGE EXTERNAL; -- not compressed, so that the size of a page of changes is known before it is read
INSERT INTO {schema}.told VALUES (0, hashtextextended(gen_random_uuid()::text, 0) & 9223372036854775807, 0);
