package testkit

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Ledger is a receiver that notes what it accepts of each tenant, in order: the number of
// users, which senders of Snapshot count up. Its zero value is ready for use.
type Ledger struct {
	mu       sync.Mutex // guards what follows
	down     bool
	got      map[string][]int
	underway int
	figures  LedgerFigures
	latest   time.Time        // when something was last accepted
	stamps   map[string]int64 // if not nil: the highest webhook-timestamp of each tenant, and an older one is refused
}

// LedgerFigures are what a Ledger has seen besides.
type LedgerFigures struct {
	Refused int           // while it was down
	Late    int           // refused for an older webhook-timestamp
	Most    int           // requests at once
	Gap     time.Duration // the longest between two that were accepted
}

// NewLedger starts one, and returns where it is.
func NewLedger(t testing.TB) (*Ledger, string) {
	t.Helper()
	l := new(Ledger)
	srv := httptest.NewServer(l)
	t.Cleanup(srv.Close)
	return l, srv.URL
}

func (l *Ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	l.underway++
	l.figures.Most = max(l.figures.Most, l.underway)
	l.mu.Unlock()
	defer func() { l.mu.Lock(); l.underway--; l.mu.Unlock() }()
	var body struct {
		Payload struct {
			Tenant struct{ Code string }
			Change struct{ Features []struct{ Quantity int } }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Payload.Change.Features) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		l.figures.Refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	tenant := body.Payload.Tenant.Code
	if l.stamps != nil {
		stamp, err := strconv.ParseInt(r.Header.Get("Webhook-Timestamp"), 10, 64)
		if err != nil || stamp < l.stamps[tenant] {
			l.figures.Late++
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		l.stamps[tenant] = stamp
	}
	if l.got == nil {
		l.got = make(map[string][]int)
	}
	l.got[tenant] = append(l.got[tenant], body.Payload.Change.Features[0].Quantity)
	now := time.Now()
	if !l.latest.IsZero() {
		l.figures.Gap = max(l.figures.Gap, now.Sub(l.latest))
	}
	l.latest = now
}

// SetDown makes it answer everything with 503, or no longer.
func (l *Ledger) SetDown(down bool) { l.mu.Lock(); defer l.mu.Unlock(); l.down = down }

// RefuseOlder has it refuse what was sent before something that it has of the same tenant,
// as docs/operations.md advises.
func (l *Ledger) RefuseOlder() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stamps = make(map[string]int64)
}

// Figures are those so far.
func (l *Ledger) Figures() LedgerFigures { l.mu.Lock(); defer l.mu.Unlock(); return l.figures }

// All is what it has of a tenant, in order.
func (l *Ledger) All(tenant string) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got[tenant])
}

// Tenants are those of which it has anything.
func (l *Ledger) Tenants() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.got))
}

// Count is how many it has of a tenant.
func (l *Ledger) Count(tenant string) int { return len(l.All(tenant)) }

// Highest is the highest number that it has of a tenant.
func (l *Ledger) Highest(tenant string) int { return slices.Max(append(l.All(tenant), 0)) }

// Last is what it holds of a tenant now; 0: nothing.
func (l *Ledger) Last(tenant string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.got[tenant]); n > 0 {
		return l.got[tenant][n-1]
	}
	return 0
}
