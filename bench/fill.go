package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite"
)

// fill makes so many tenants of a platform, each with a webhook that waits, if asked for.
func fill(ctx context.Context, inbox, platform, name string, count int, waits bool) error {
	body := []byte(`{"type":"TenantProvisioningChange","payload":{"padding":"` + strings.Repeat("x", 400) + `"}}`)
	digest := sha256.Sum256(body)
	values := strings.NewReplacer(
		"{count}", fmt.Sprint(count),
		"{platform}", platform,
		"{name}", name,
		"{body}", fmt.Sprintf("%x", body),
		"{digest}", fmt.Sprintf("%x", digest),
		"{now}", fmt.Sprint(time.Now().UnixMicro()),
		"{size}", fmt.Sprint(len(body)+512))
	statements := []string{
		`INSERT INTO {lane} (tenant, platform, event_type) SELECT {tenant}, '{platform}', '' FROM {source}`,
		`INSERT INTO {snapshot} (tenant, platform, seq, uuid, received, name, features)
		SELECT {tenant}, '{platform}', 1, {tenant}, {now}, {tenant}, '[{"code":"users","limit":25}]' FROM {source}`,
	}
	if waits {
		statements = []string{
			// The receiver is USHER_WEBHOOK_RECEIVERS_1.
			`INSERT INTO {lane} (tenant, platform, event_type, receiver, waiting, bytes, waiting_since, due, tail)
			SELECT {tenant}, '{platform}', '', '1', 1, {size}, {now}, {now}, i + {base} FROM {source}`,
			`INSERT INTO {webhook} (
				seq, uuid, tenant, platform, event_type, type, snapshot,
				digest, size, received, state, rank, changed, why, record)
			SELECT
				i + {base}, {tenant}, {tenant}, '{platform}', '', 'TenantProvisioningChange', 1,
				{hex:{digest}}, {size}, {now}, 0, i + {base}, {now}, '', '{}' FROM {source}`,
			`INSERT INTO {content} (seq, header, body) SELECT i + {base}, {hex:}, {hex:{body}} FROM {source}`,
			`{advance}`,
		}
	}
	if path, ok := strings.CutPrefix(inbox, "file:"); ok {
		return fillFile(ctx, path, values, statements)
	}
	return fillDatabase(ctx, inbox, values, statements)
}

func fillFile(ctx context.Context, path string, values *strings.Replacer, statements []string) error {
	const pragmas = "?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=cache_size(-262144)"
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(path)+pragmas)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	words := strings.NewReplacer(
		"{lane}", "lane",
		"{snapshot}", "snapshot",
		"{webhook}", "webhook",
		"{content}", "content",
		"{tenant}", "'{name}-' || i",
		"{base}", "(SELECT last FROM number)",
		"{source}", `(WITH RECURSIVE n (i) AS (
			SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n)`,
		"{advance}", "UPDATE number SET last = last + {count}")
	for _, s := range statements {
		s = values.Replace(words.Replace(values.Replace(s)))
		if _, err := db.ExecContext(ctx, hexWords(s, "x'", "'")); err != nil {
			return fmt.Errorf("%w in %.200s", err, s)
		}
	}
	_, err = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}

func fillDatabase(ctx context.Context, dsn string, values *strings.Replacer, statements []string) error {
	db, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer db.Close(ctx)
	words := strings.NewReplacer(
		"{lane}", "usher.lane",
		"{snapshot}", "usher.snapshot",
		"{webhook}", "usher.webhook",
		"{content}", "usher.content",
		"{tenant}", "'{name}-' || i",
		"{base}", "(SELECT last_value FROM usher.number)",
		"{source}", "generate_series(1, {count}) AS n (i)",
		"{advance}", "SELECT setval('usher.number', (SELECT last_value FROM usher.number) + {count})")
	statements = append(statements, "ANALYZE")
	for _, s := range statements {
		s = values.Replace(words.Replace(values.Replace(s)))
		if _, err := db.Exec(ctx, hexWords(s, `'\x`, "'::bytea")); err != nil {
			return fmt.Errorf("%w in %.200s", err, s)
		}
	}
	return nil
}

// hexWords writes bytes as the database wants them.
func hexWords(s, before, after string) string {
	parts := strings.Split(s, "{hex:")
	for i, p := range parts[1:] {
		digits, rest, _ := strings.Cut(p, "}")
		parts[i+1] = before + digits + after + rest
	}
	return strings.Join(parts, "")
}
