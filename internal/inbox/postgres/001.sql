-- What is special to PostgreSQL; the tables are in engine/001.sql.

ALTER TABLE {schema}.lane SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.webhook SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {schema}.snapshot SET (fillfactor = 80);
ALTER TABLE {schema}.snapshot ADD CHECK (jsonb_typeof(features) = 'array'); -- a jsonb null, say, would fail every query of the views
ALTER TABLE {schema}.content SET (toast_tuple_target = 8160);
ALTER TABLE {schema}.content ALTER body SET STORAGE EXTERNAL; -- compressing costs more than it saves
CREATE INDEX lane_due ON {schema}.lane (receiver, last_result, due) WHERE bytes > 0; -- also for figures
-- For the views, whose columns have the database's own collation, as the columns of other tables that they are joined with have. It
-- compares bytes: an index in the order of that collation breaks when the collation changes with the operating system.
CREATE INDEX snapshot_view ON {schema}.snapshot ((tenant COLLATE "default") text_pattern_ops, (platform COLLATE "default") text_pattern_ops);

-- The numbers of webhooks.
CREATE SEQUENCE {schema}.number CACHE 1;
