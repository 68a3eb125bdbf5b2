//go:build unix

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// Killed at random moments under eight senders, again and again: whatever was answered
// 200 is delivered, at least once, and in order for each tenant.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	s := testkit.NewService(t)
	receiver, receiverURL := testkit.NewLedger(t)
	gate := testkit.FreeAddress(t)
	environ := s.Environ("USHER_WEBHOOK_FORWARD_URL="+receiverURL, "USHER_WEBHOOK_LISTEN="+gate,
		"USHER_WEBHOOK_INBOX=file:"+filepath.Join(t.TempDir(), "inbox.db"), "USHER_LOG_LEVEL=warn")
	senders, kills := pick(4, 8), pick(4, 40)
	acked := make([]int, senders) // the last number that was answered 200, of each sender's tenant
	var answered atomic.Int64     // how many were answered 200
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: senders}}
	var sending sync.WaitGroup
	for i := range senders {
		sending.Go(func() {
			for n := 1; ctx.Err() == nil; {
				resp, err := client.Post("http://"+gate+"/webhooks", "application/json", strings.NewReader(testkit.Snapshot(fmt.Sprint("t", i), n)))
				if err != nil { // it was killed just now: the service would send it again, too
					time.Sleep(5 * time.Millisecond)
					continue
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode == 200 {
					acked[i] = n
					answered.Add(1)
					n++
				}
				time.Sleep(2 * time.Millisecond) // a sender's own pace
			}
		})
	}
	for n := range kills {
		before := answered.Load()
		p := startProcess(t, environ)
		testkit.Eventually(t, "listening", func() bool {
			conn, err := net.Dial("tcp", gate)
			if err == nil {
				conn.Close()
			}
			// on a slow machine a kill could always come before the first 200
			return err == nil && (n%2 == 0 || answered.Load() > before)
		})
		time.Sleep(time.Duration(rand.IntN(250)) * time.Millisecond) // any moment
		p.Kill()
	}
	stop()
	sending.Wait()

	startProcess(t, environ)
	total, repeated := 0, 0
	for i := range senders {
		tenant := fmt.Sprint("t", i)
		testkit.Eventually(t, "all delivered", func() bool { return receiver.Last(tenant) == acked[i] || receiver.Last(tenant) == acked[i]+1 })
		got := receiver.All(tenant)
		most := 0
		for _, n := range got {
			switch {
			case n == most+1:
				most = n
			case n <= most: // once more, after a kill
				repeated++
			default:
				t.Errorf("tenant %s: %d came after %d", tenant, n, most)
			}
		}
		if most < acked[i] {
			t.Errorf("tenant %s: %d was answered 200, but only %d arrived", tenant, acked[i], most)
		}
		total += acked[i]
	}
	t.Logf("%d kills, %d senders: %d webhooks answered 200, none lost, none out of order, %d delivered more than once", kills, senders, total, repeated)
}

// Killed between the store of an invalid webhook and its answer: it is there after the restart, and what its
// sender sends again is a copy.
func TestInvalidAndKilled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs the built usher")
	}
	for name, prepare := range map[string]func(t *testing.T) (inbox string, stored func(tenant string) bool, latency func(time.Duration)){
		"file": func(t *testing.T) (string, func(string) bool, func(time.Duration)) {
			file := filepath.Join(t.TempDir(), "inbox.db")
			return "file:" + file, func(tenant string) bool {
				text, _ := os.ReadFile(file + "-wal")
				return bytes.Contains(text, []byte(tenant))
			}, func(time.Duration) {}
		},
		"PostgreSQL": func(t *testing.T) (string, func(string) bool, func(time.Duration)) {
			database := pgtest.Schema(t)
			db, schema := schemaOf(t, database)
			wire := pgtest.Cut(t, hostOf(t, database))
			return wire.Through(database), func(tenant string) bool {
				n := 0
				// the table may not be there yet
				_ = db.QueryRow("SELECT count(*) FROM "+schema+".content WHERE position($1::bytea IN body) > 0", []byte(tenant)).Scan(&n)
				return n > 0
			}, wire.Latency
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inbox, stored, latency := prepare(t)
			environ := gateAlone(newReceiver(t, 200).url, "USHER_WEBHOOK_INBOX="+inbox)
			hit := 0
			for n := 1; n <= 10 && hit == 0; n++ { // the moment is short in a file
				tenant := fmt.Sprint("killed-", n)
				p := startProcess(t, environ)
				p.Ready(t)
				gate, answer := hooks(t, p), make(chan reply, 1)
				latency(40 * time.Millisecond) // for as long usher does not know that the database has it
				go func() {
					answer <- post(strings.TrimSuffix(strings.TrimPrefix(gate, "http://"), "/webhooks"), "/webhooks", odd(tenant, 5))
				}()
				for !stored(tenant) && len(answer) == 0 { // nothing else says so
					time.Sleep(100 * time.Microsecond)
				}
				p.Kill()
				latency(0)
				got := <-answer
				if got.status != 0 && got.status != 422 {
					t.Fatalf("%d %s", got.status, got.body)
				}
				p = startProcess(t, environ)
				p.Ready(t)
				all := invalidOf(t, p, tenant)
				// its body was in the log, and not yet the end of the transaction
				if name == "file" && got.status == 0 && len(all) == 0 {
					p.Kill()
					continue
				}
				if len(all) != 1 {
					t.Fatalf("after the restart: %+v", all)
				}
				if got.status == 0 {
					hit++
				}
				if status, _, body := testkit.Post(t, hooks(t, p), odd(tenant, 5)); status != 422 {
					t.Fatalf("sent again: %d %s", status, body)
				}
				if again := invalidOf(t, p, tenant); len(again) != 1 || again[0] != all[0] {
					t.Fatalf("sent again: %+v", again)
				}
				p.Kill()
			}
			t.Logf("killed before the answer: %d", hit)
		})
	}
}
