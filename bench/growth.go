package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "modernc.org/sqlite"
)

// Growth is what an inbox costs as it grows: with the tenants that it knows, and with the webhooks that wait in it.

// size is one size of an inbox, and what was measured there.
type size struct {
	way              way
	tenants, waiting int
	ready            time.Duration // from the start of the process
	idle, busy       int64         // memory, bytes
	sample
}

var (
	tenantSteps  = []int{1_000, 100_000, 1_000_000}
	waitingSteps = []int{0, 100_000, 1_000_000}
)

// growth measures both engines at each size. What waits is for a receiver that is down; the load is for another one.
func growth(ctx context.Context, b *bench) ([]*table, error) {
	var all []size
	t := &table{
		title: "How an inbox grows",
		header: []string{
			"", "tenants", "waiting", "webhooks/s", "CPU, µs", "p99, ms", "ready, ms", "MB then", "under load",
		},
	}
	for _, w := range []way{file, database} {
		for _, tenants := range pick(b, tenantSteps[:2], tenantSteps) {
			rows, err := b.grow(ctx, w, tenants, pick(b, waitingSteps[:2], waitingSteps))
			if err != nil {
				return nil, fmt.Errorf("%s, %d tenants: %w", w.name, tenants, err)
			}
			all = append(all, rows...)
		}
	}
	for _, g := range all {
		if g.tenants == tenantSteps[1] && !b.quick || g.waiting == waitingSteps[1] && !b.quick {
			continue // it is in the drawing
		}
		t.add(g.way.name,
			fmt.Sprint(g.tenants),
			fmt.Sprint(g.waiting),
			number(g.all),
			tenths(g.cpu*1e6),
			millis(quantile(g.latencies, 0.99)),
			millis(g.ready),
			megabytes([]int64{g.idle}),
			megabytes([]int64{g.busy}))
	}
	t.note("64 senders, as under Inbound, until the last webhook is delivered. " +
		"What waits is one webhook each of other tenants, for a receiver that is down. Memory is RSS.")
	if b.plot != "" {
		if err := os.WriteFile(b.plot, []byte(plotGrowth(all)), 0o644); err != nil {
			return nil, err
		}
	}
	return []*table{t}, nil
}

// grow measures one inbox with so many tenants, with more and more that waits.
func (b *bench) grow(ctx context.Context, w way, tenants int, waiting []int) (all []size, err error) {
	rc, err := newReceiver()
	if err != nil {
		return nil, err
	}
	defer rc.down()
	nobody, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	inbox, stop, err := b.inboxFor(w)
	if err != nil {
		return nil, err
	}
	defer stop()
	settings := []string{"USHER_WEBHOOK_INBOX_MAX_BYTES=65536MiB", "USHER_SHUTDOWN_GRACE=2s",
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://" + rc.address + "/",
		"USHER_WEBHOOK_RECEIVERS_1_PLATFORMS=away", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL=http://" + nobody[0] + "/"}
	// It makes its tables.
	u, err := b.start(ctx, inbox, settings...)
	if err != nil {
		return nil, err
	}
	for _, platform := range []string{"crm", "away"} {
		f, err := newFleet(u.gate, "first-"+platform, 1, 1)
		if err == nil {
			f[0].platform = platform
			err = f[0].send(new(load))
		}
		f.close()
		if err != nil {
			u.stop()
			return nil, err
		}
	}
	u.stop()
	if err := fill(ctx, inbox, "crm", "known", tenants, false); err != nil {
		return nil, err
	}
	numbers := make([]int, tenants) // of each tenant's next webhook
	for i, n := range waiting {
		if i > 0 {
			if err := fill(ctx, inbox, "away", fmt.Sprint("waits-", i), n-waiting[i-1], true); err != nil {
				return nil, err
			}
		}
		b.say("growth, %s, %d tenants, %d waiting", w.name, tenants, n)
		g := size{way: w, tenants: tenants, waiting: n}
		if err := b.weighInbox(ctx, &g, rc, inbox, numbers, settings); err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// weighInbox starts usher on an inbox and puts load on it.
func (b *bench) weighInbox(
	ctx context.Context, g *size, rc *receiver, inbox string, numbers []int, settings []string,
) error {
	began := time.Now()
	u, err := b.start(ctx, inbox, settings...)
	if err != nil {
		return err
	}
	defer u.stop()
	g.ready = time.Since(began)
	time.Sleep(2 * time.Second) // what it does at its start is over
	g.idle = statusOf(u.pid(), "VmRSS")
	const senders = 64
	var f fleet
	for i := range senders {
		s := &sender{host: u.gate, platform: "crm", copies: true}
		from, to := i*g.tenants/senders, (i+1)*g.tenants/senders
		for n := from; n < to; n++ {
			s.tenants = append(s.tenants, fmt.Sprint("known-", n+1))
		}
		s.sent = numbers[from:to]
		// Not those that a former load has just used.
		s.turn = g.waiting % len(s.tenants)
		f = append(f, s)
	}
	if err := f.connect(); err != nil {
		return err
	}
	defer f.close()
	measure := &gates{
		bench:    b,
		receiver: rc,
		ushers:   map[way]*usher{g.way: u},
		fleets:   map[key]fleet{{g.way, senders}: f},
	}
	highest := watchMemory(u.process)
	g.sample, err = measure.sample(ctx, key{g.way, senders}, pick(b, 2*time.Second, 5*time.Second))
	g.busy = highest()
	if err == nil && measure.lost+measure.refused > 0 {
		err = fmt.Errorf("%d webhooks were lost, and %d refused", measure.lost, measure.refused)
	}
	return err
}

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

// plotGrowth draws memory, start and webhooks a second over what waits.
func plotGrowth(all []size) string {
	const width, height, left, top = 250, 150, 60, 40
	panels := []struct {
		name string
		of   func(size) float64
	}{
		{"webhooks/s", func(g size) float64 { return g.all }},
		{"ready after, ms", func(g size) float64 { return g.ready.Seconds() * 1e3 }},
		{"memory under load, MB", func(g size) float64 { return float64(g.busy) / 1e6 }},
	}
	colours, dashes := []string{"#c50", "#06c"}, []string{"2 3", "7 3", ""}
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="11"><rect width="100%%" height="100%%" fill="white"/>`+"\n",
		3*(width+left)+20, height+top+70)
	x := func(waiting int) float64 { // 0, then by powers of ten
		at := 0.0
		for n := waiting; n >= 1000; n /= 10 {
			at++
		}
		return at / 4 * width
	}
	for i, p := range panels {
		most := 1.0
		for _, g := range all {
			most = max(most, p.of(g))
		}
		fmt.Fprintf(&s, `<g transform="translate(%d %d)">`, left+i*(width+left), top)
		fmt.Fprintf(&s, `<text y="-12" font-weight="bold">%s</text>`, p.name)
		fmt.Fprintf(&s, `<path d="M0 0V%d H%d" fill="none" stroke="#888"/>`, height, width)
		fmt.Fprintf(&s, `<text x="-4" y="8" text-anchor="end">%.0f</text>`, most)
		fmt.Fprintf(&s, `<text x="-4" y="%d" text-anchor="end">0</text>`, height)
		for _, n := range waitingSteps {
			fmt.Fprintf(&s, `<text x="%.0f" y="%d" text-anchor="middle">%d</text>`, x(n), height+14, n)
		}
		lines := map[string]string{}
		for _, g := range all {
			name := fmt.Sprint(g.way.name, g.tenants)
			lines[name] += fmt.Sprintf(" %.1f,%.1f", x(g.waiting), height*(1-p.of(g)/most))
		}
		for j, w := range []way{file, database} {
			for k, tenants := range tenantSteps {
				points := strings.TrimSpace(lines[fmt.Sprint(w.name, tenants)])
				fmt.Fprintf(&s, `<polyline points="%s" fill="none" stroke="%s" stroke-dasharray="%s"/>`,
					points, colours[j], dashes[k])
			}
		}
		fmt.Fprintln(&s, `</g>`)
	}
	fmt.Fprintf(&s, `<text x="%d" y="%d">over webhooks that wait. `+
		`<tspan fill="#c50">File</tspan>, <tspan fill="#06c">PostgreSQL</tspan>; `+
		`dotted: 1,000 tenants, dashed: 100,000, solid: 1,000,000</text></svg>`+"\n", left, height+top+45)
	return s.String()
}
