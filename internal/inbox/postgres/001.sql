-- What is special to PostgreSQL; the tables are in engine/001.sql.

ALTER TABLE {schema}.lane SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.webhook SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.snapshot SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.number SET (fillfactor = 10);
-- What is no list of features, a jsonb null, say, would fail every query of the views, for all tenants.
ALTER TABLE {schema}.snapshot ADD CHECK (jsonb_typeof(features) = 'array' AND NOT jsonb_path_exists(features, '$[*] ? (!(@.type() == "object" && @.code.type() == "string"
	&& (!exists(@.limit) || @.limit.type() == "null" || @.limit.type() == "number" && @.limit >= 0 && @.limit <= 9007199254740991 && @.limit.floor() == @.limit)))'));
ALTER TABLE {schema}.content SET (toast_tuple_target = 8160);
ALTER TABLE {schema}.content ALTER body SET STORAGE EXTERNAL; -- compressing costs more than it saves
ALTER TABLE {schema}.snapshot ALTER features SET STORAGE EXTERNAL; -- not compressed, so that the size of a page of changes is known before it is read
-- For the views, whose columns have the database's own collation, as the columns of other tables that they are joined with have. It
-- compares bytes: an index in the order of that collation breaks when the collation changes with the operating system.
CREATE INDEX snapshot_view ON {schema}.snapshot ((tenant COLLATE "default") text_pattern_ops, (platform COLLATE "default") text_pattern_ops); -- for erased ones, too: else a plan of a small table reads all of it
