package proxy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"usher/internal/testkit"
)

func TestPayload(t *testing.T) {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(rand.Int())
	}
	const limit = 512 << 10
	for _, tc := range []struct {
		name string
		size int
		room int64
		kept bool
	}{
		{"one byte", 1, 0, true},
		{"always kept", alwaysKept, 0, true},
		{"no room", alwaysKept + 2, 0, false},
		{"a little room", alwaysKept + 2, 40 << 10, true},
		{"room for a part", 200 << 10, 100 << 10, false},
		{"more than once as much", 200 << 10, 1 << 20, true},
		{"at the limit", limit, 1 << 20, true},
		{"beyond the limit", limit + 1, 1 << 20, false},
	} {
		for _, known := range []bool{true, false} {
			for name, slow := range map[string]func(io.Reader) io.Reader{"at once": iotest.DataErrReader, "by halves": iotest.HalfReader} {
				t.Run(fmt.Sprintf("%s/known %v/%s", tc.name, known, name), func(t *testing.T) {
					want := data[:tc.size]
					req := &http.Request{Body: io.NopCloser(slow(bytes.NewReader(want))), ContentLength: int64(tc.size)}
					if !known {
						req.ContentLength = -1
					}
					memory := NewMemory(tc.room)
					p := new(payload)
					if err := p.read(req.Body, req.ContentLength, limit, memory); err != nil {
						t.Fatal(err)
					}
					if kept := p.stream == nil; kept != tc.kept {
						t.Errorf("kept is %v", kept)
					}
					used, held := memory.used.Load(), int64(cap(p.kept))
					switch size := int64(tc.size); {
					case used > tc.room:
						t.Errorf("%d bytes taken of %d", used, tc.room)
					case tc.kept && size > alwaysKept && (used < held || used > 2*size):
						t.Errorf("%d bytes taken for %d", used, held)
					case tc.kept && size <= alwaysKept && used != 0:
						t.Errorf("%d bytes taken for a small one", used)
					case tc.kept && known && held > size+1:
						t.Errorf("%d bytes held for %d", held, size)
					}
					for range 2 {
						p.attach(req)
						if got, err := io.ReadAll(req.Body); err != nil || !bytes.Equal(got, want) {
							t.Errorf("%d bytes, %v", len(got), err)
						}
						if !tc.kept { // sent, and so given back; there is no second time
							break
						}
						if wantLength := int64(tc.size); req.ContentLength != wantLength {
							t.Errorf("length %d", req.ContentLength)
						}
					}
					if used := memory.used.Load(); !tc.kept && used != 0 {
						t.Errorf("%d bytes still taken by a stream", used)
					}
					p.release()
					p.release()
					if used := memory.used.Load(); used != 0 {
						t.Errorf("%d bytes still taken", used)
					}
				})
			}
		}
	}
}

// A body that breaks off is an error, and its memory is given back.
func TestPayloadBreaksOff(t *testing.T) {
	for _, why := range []error{io.ErrClosedPipe, io.ErrUnexpectedEOF} {
		for _, length := range []int64{200 << 10, -1} {
			for _, have := range []int{0, 1, alwaysKept + 1, 100 << 10} {
				memory := NewMemory(1 << 20)
				p := new(payload)
				broken := io.MultiReader(strings.NewReader(strings.Repeat("x", have)), iotest.ErrReader(why))
				if err := p.read(io.NopCloser(broken), length, 1<<20, memory); err != why {
					t.Errorf("%d bytes, length %d: %v, want %v", have, length, err, why)
				}
				p.release()
				if used := memory.used.Load(); used != 0 {
					t.Errorf("%d bytes, length %d: %d bytes still taken", have, length, used)
				}
			}
		}
	}
}

// Many callers whose calls stand still, in the middle of their body or waiting for an
// answer, take no more memory than they may. Small calls beside them are kept and so
// survive a 401; when all is over, the memory is there again.
func TestReplayMemoryFlood(t *testing.T) {
	const (
		calls = 100
		size  = 1 << 20
		room  = 4 << 20
		// beside the bodies: goroutines, buffers of net/http's and ours, both ends of
		// each connection being here
		each = 150 << 10
	)
	var arrived atomic.Int64
	var odd atomic.Bool
	done := make(chan struct{})
	defer close(done)
	memory := NewMemory(room)
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Stall") == "" {
			if odd.Swap(false) {
				w.WriteHeader(http.StatusUnauthorized)
			}
			return
		}
		arrived.Add(1)
		<-done
	}), func(c *Config) { c.ReplayLimit, c.ReplayMemory = size, memory })
	r.post(t, query)
	before := inUse()

	body := bytes.Repeat([]byte("x"), size)
	var conns []net.Conn
	var writing sync.WaitGroup
	for i := range calls {
		conn, err := net.Dial("tcp", r.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
		sent := body
		if i%2 == 1 {
			sent = body[:size-1] // stands still before its end
		}
		writing.Go(func() {
			fmt.Fprintf(conn, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nX-Stall: yes\r\nContent-Length: %d\r\n\r\n", size)
			_, _ = conn.Write(sent) // what streams is not all taken
		})
	}
	// Those that are whole and those that stream come to the service; those kept in the
	// middle of their body do not.
	testkit.Eventually(t, "the calls stand still", func() bool {
		return arrived.Load() >= calls-room/size
	})
	if used := memory.used.Load(); used > room {
		t.Errorf("%d bytes taken, %d are allowed", used, room)
	}
	grown := inUse() - before
	t.Logf("%d calls of %d KiB: %d KiB more in use", calls, size>>10, grown>>10)
	if grown > room+calls*each {
		t.Errorf("%d bytes more in use", grown)
	}
	odd.Store(true)
	if status, answer := r.post(t, query); status != 200 || r.replayed.Load() != 1 {
		t.Errorf("a small call: %d %s, sent again %d times", status, answer, r.replayed.Load())
	}
	for _, conn := range conns {
		conn.Close()
	}
	writing.Wait()
	testkit.Eventually(t, "all memory is given back", func() bool { return memory.used.Load() == 0 })
}

// inUse is what is in use after a collection.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Bodies of all sizes, kept and streaming, some of them broken off, with tokens revoked
// meanwhile: what arrives is what was sent, and no memory is lost.
func TestReplayMemoryUnderLoad(t *testing.T) {
	memory := NewMemory(1 << 20)
	var tries atomic.Int64
	r := newRig(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // it was broken off
		}
		if tries.Add(1)%50 == 0 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if want := r.Header.Get("X-Digest"); fmt.Sprintf("%x", sha256.Sum256(body)) != want {
			t.Errorf("a body of %d bytes is another one", len(body))
		}
	}), func(c *Config) { c.ReplayLimit, c.ReplayMemory = 256<<10, memory })
	noise := make([]byte, 640<<10)
	for i := range noise {
		noise[i] = byte(rand.Int())
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	defer client.CloseIdleConnections()
	// The first one is refused for sure, and small enough to be sent again.
	tries.Store(49)
	first, _ := http.NewRequest("POST", r.URL+"/graphql", strings.NewReader("small"))
	first.Header.Set("X-Digest", fmt.Sprintf("%x", sha256.Sum256([]byte("small"))))
	if resp, err := client.Do(first); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	} else {
		resp.Body.Close()
	}
	var all sync.WaitGroup
	for i := range 32 {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		all.Go(func() {
			for range 10 {
				body := noise[random.IntN(len(noise)/2):][:random.IntN(len(noise)/2)]
				var from io.Reader = bytes.NewReader(body)
				switch random.IntN(4) {
				case 0:
					from = io.MultiReader(from) // chunks
				case 1:
					from = io.MultiReader(bytes.NewReader(body[:len(body)/2]), iotest.ErrReader(errors.New("broken off")))
				}
				req, _ := http.NewRequest("POST", r.URL+"/graphql", from)
				req.Header.Set("X-Digest", fmt.Sprintf("%x", sha256.Sum256(body)))
				resp, err := client.Do(req)
				if err != nil {
					continue
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				// What streamed is not sent again, so that its 401 comes through.
				if resp.StatusCode != 200 && resp.StatusCode != 401 {
					t.Errorf("%d for %d bytes", resp.StatusCode, len(body))
				}
			}
		})
	}
	all.Wait()
	if used := memory.used.Load(); used > 1<<20 {
		t.Errorf("%d bytes taken", used)
	}
	testkit.Eventually(t, "all memory is given back", func() bool { return memory.used.Load() == 0 })
	if r.replayed.Load() == 0 {
		t.Error("no call was sent a second time")
	}
}
