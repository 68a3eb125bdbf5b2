-- The statements that SQLite does not have, or spells otherwise; the others are in engine/statements.sql.

-- name: need_room
-- A write that needs new pages.
INSERT INTO {schema}.content SELECT -1, '', convert_to(string_agg(md5(n::text), ''), 'UTF8') FROM generate_series(1, 32768) AS n

-- name: sweep_lock
-- 1: this replica may delete. The lock ends with the transaction.
SELECT pg_try_advisory_xact_lock(hashtext('usher sweep {schema}'))::int::bigint

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: settings
SELECT set_config('search_path', 'pg_catalog, pg_temp', true), -- see safePath
	set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write') THEN 'on'
		ELSE current_setting('synchronous_commit') END, true),
	set_config('client_min_messages', 'warning', true), -- a COMMIT that no standby has confirmed comes with a warning
	-- Whoever stands still in a transaction holds its lanes, and new ones: for a second.
	set_config('idle_in_transaction_session_timeout', '1000', true), set_config('lock_timeout', '3000', true), set_config('statement_timeout', '9000', true),
	-- The writer finds everything by its key. Without these the server would keep plans that it made while the tables were small,
	-- and read whole tables.
	set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
	set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true),
	pg_backend_pid() -- the last one: the engine reads it

-- name: confirm
-- Something whose COMMIT waits for standbys, and that a role may do which may only read.
SELECT pg_logical_emit_message(true, 'usher', '')::text

-- name: end_silent
-- Ends those for whose locks a backend (1) waits, and whose clients say nothing. One that waits for a standby is committed, and stays.
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid = ANY (pg_blocking_pids($1))
	AND wait_event = 'ClientRead' AND now() - state_change > interval '1 second'
