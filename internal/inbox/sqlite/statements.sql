-- The statements that PostgreSQL does not have, or spells otherwise; the others are in engine/statements.sql.

-- name: sweep_lock
-- 1: this process may delete. No other process has the file.
SELECT 1

-- name: copy_identity
-- No cursor of the original is known here.
UPDATE era SET token = random() & 9223372036854775807

-- name: copy_pause
-- Everything, until somebody resumes. 1 is when the copy was made.
INSERT INTO pause (receiver, platform, tenant, since, until, copied) VALUES ('', '', '', ?1, {never}, ?1)
ON CONFLICT (receiver, platform, tenant) DO UPDATE SET until = excluded.until, copied = excluded.copied
