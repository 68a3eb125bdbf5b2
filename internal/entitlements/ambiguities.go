package entitlements

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Ambiguities remembers about which tenants callers ask in vain: their code exists on several platforms, and
// the question names none. Such a code alone is no fault. The zero value is ready for use.
type Ambiguities struct {
	lookup Lookup // answers them; Watch sets it

	mu    sync.Mutex
	asked map[string]time.Time // when somebody last asked so
}

const (
	// AmbiguousFor is for how long such a question counts.
	AmbiguousFor = 15 * time.Minute

	maxAmbiguities = 1000

	// lookPatience is how long Lately waits for a database that hangs.
	lookPatience = time.Second
)

// Watch returns a Lookup that notes ambiguous questions.
func (a *Ambiguities) Watch(l Lookup) Lookup {
	a.lookup = l
	return func(ctx context.Context, tenant string, platform *string) (Answer, error) {
		answer, err := l(ctx, tenant, platform)
		if platform == nil {
			a.note(tenant, err)
		}
		return answer, err
	}
}

func (a *Ambiguities) note(tenant string, err error) {
	if _, several := errors.AsType[*AmbiguousError](err); !several {
		a.settle(tenant, err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.asked[tenant]; !known && len(a.asked) >= maxAmbiguities {
		return
	}
	if a.asked == nil {
		a.asked = make(map[string]time.Time)
	}
	a.asked[tenant] = time.Now()
}

// settle drops a code if a question about it is not ambiguous any more.
func (a *Ambiguities) settle(tenant string, err error) {
	if err == nil || errors.Is(err, ErrUnknown) {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.asked, tenant)
	}
}

// Lately returns the codes of these tenants, without those that are not ambiguous any more: somebody may have
// erased one of two tenants.
func (a *Ambiguities) Lately(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	var lookups sync.WaitGroup
	for _, code := range a.codes() {
		lookups.Go(func() { // side by side, because the book asks its store for all at once
			_, err := a.lookup(ctx, code, nil)
			a.settle(code, err)
		})
	}
	lookups.Wait()
	return a.codes()
}

func (a *Ambiguities) codes() (codes []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for code, at := range a.asked {
		if time.Since(at) > AmbiguousFor {
			delete(a.asked, code)
			continue
		}
		codes = append(codes, code)
	}
	slices.Sort(codes)
	return codes
}
