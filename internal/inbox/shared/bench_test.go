package shared

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/entitlements"
	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
	"usher/internal/testkit"
	"usher/webhookgate"
)

// BenchmarkTakeover has b.N webhooks wait, each of its own tenant, while their receiver is down. It
// measures what memory they take in the replica that delivers them all, and how long it takes
// until that one, just started, knows them. A replica that delivers none of them has the index of
// tenants for entitlements, and the ends of as many lanes as it may remember; so has the other.
//
//	go test ./internal/inbox/shared -run xxx -bench Takeover -benchtime 1000000x -timeout 30m
func BenchmarkTakeover(b *testing.B) {
	address := serverProcess(b)
	began := time.Now()
	filler, _, end := openReplica(b, address, true)
	byHand := min(b.N, dedupSize) // so that the other replica's memory of lanes' ends is full, too
	fill(b, filler, b.N-byHand)
	end()
	filled := time.Since(began)

	before := inboxtest.Heap()
	other, _, end := openReplica(b, address, true)
	defer end()
	following(other)
	index := inboxtest.Heap() - before
	var sending sync.WaitGroup
	for sender := range 64 {
		sending.Go(func() {
			for n := b.N - byHand + sender; n < b.N; n += 64 {
				if _, err := other.Append(waitingWebhook(n), false); err != nil {
					b.Error(err)
				}
			}
		})
	}
	sending.Wait()
	elsewhere := inboxtest.Heap() - before

	before = inboxtest.Heap()
	b.ResetTimer()
	holder, c, end := openReplica(b, address, false)
	defer end()
	for c.Stats().Pending < b.N {
		time.Sleep(10 * time.Millisecond)
	}
	b.StopTimer()
	following(holder)
	here := inboxtest.Heap() - before
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(filled.Seconds(), "s-to-fill")
	b.ReportMetric(b.Elapsed().Seconds(), "s-until-known")
	b.ReportMetric(float64(here)/float64(b.N), "B/webhook")
	b.ReportMetric(float64(index)/float64(max(1, b.N-byHand)), "B/tenant-elsewhere")
	b.ReportMetric(float64(elsewhere)/1e6, "MB-elsewhere")
}

const dedupSize = 10_000

// following waits until a replica's index has every tenant.
func following(s *Store) {
	for {
		if _, ready := s.Following(); ready {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func waitingWebhook(n int) *webhookgate.Webhook {
	return inboxtest.Webhook(fmt.Sprint("tenant-", n), strings.Repeat(`{"feature":"users","quantity":25}`, 30))
}

// openReplica opens the inbox as usher does, with an index of tenants for entitlements.
func openReplica(b *testing.B, address string, idle bool) (*Store, *courier.Courier, func()) {
	log := slog.New(slog.DiscardHandler)
	var down inboxtest.Receiver
	down.Set(inboxtest.Refusing)
	c := courier.New(courier.Config{Receivers: []courier.Receiver{{Name: "main", Try: down.Try, Concurrency: 1}}, Attempts: 20, MaxAge: time.Hour, Log: log})
	index := entitlements.NewIndex(1 << 20)
	store, err := Open(Config{
		NATS:  &servers.NATS{Servers: []string{"nats://" + address}, Stream: "USHER"},
		Route: func(webhookgate.Lane) string { return "main" }, Idle: idle, DedupSize: dedupSize, DedupWindow: time.Minute, MaxBytes: 16 << 30, Log: log,
		OnSnapshot: func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) {
			index.Know(lane.Platform, lane.Tenant, id)
		},
	}, c)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { store.Run(ctx, ctx) })
	return store, c, func() { cancel(); running.Wait(); store.Close(); runtime.KeepAlive(index) }
}

// fill has so many webhooks wait, many on their way at once, as replicas would have
// appended them.
func fill(b *testing.B, s *Store, count int) {
	js, err := jetstream.New(s.servers.Conn, jetstream.WithPublishAsyncMaxPending(10_000))
	if err != nil {
		b.Fatal(err)
	}
	for n := range count {
		w := waitingWebhook(n)
		m := nats.NewMsg(s.subjects.Lane(message.PlaceOf(w.Lane)))
		message.Pack(w).Put(m)
		h := message.NewHead(message.Webhook, w)
		h.Put(m)
		for err = jetstream.ErrTooManyStalledMsgs; err == jetstream.ErrTooManyStalledMsgs; {
			_, err = js.PublishMsgAsync(m)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	<-js.PublishAsyncComplete()
}

const serverDir = "NATS_BENCHMARK_DIR"

// serverProcess runs a NATS server as a process of its own, whose memory is not ours.
func serverProcess(b *testing.B) (address string) {
	address = testkit.FreeAddress(b)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestServerOfBenchmarks$", "-test.timeout", "0")
	cmd.Env = append(os.Environ(), serverDir+"="+b.TempDir(), "NATS_BENCHMARK_ADDRESS="+address)
	if _, err := cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testkit.Eventually(b, "the server listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return address
}

// TestServerOfBenchmarks is that process, and no test.
func TestServerOfBenchmarks(t *testing.T) {
	dir := os.Getenv(serverDir)
	if dir == "" {
		t.Skip("it is the server of a benchmark")
	}
	address, err := net.ResolveTCPAddr("tcp", os.Getenv("NATS_BENCHMARK_ADDRESS"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{Host: address.IP.String(), Port: address.Port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark is gone
	s.Shutdown()
}
