package entitlements

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Ambiguities remembers about which tenants callers ask in vain: their code exists on several platforms, and the question names none.
// Such a code alone is no fault. The zero value is ready for use.
type Ambiguities struct {
	mu    sync.Mutex
	asked map[string]time.Time // when somebody last asked so
}

const (
	// AmbiguousFor is for how long such a question counts.
	AmbiguousFor = 15 * time.Minute

	maxAmbiguities = 1000
)

// Watch returns a Lookup that notes ambiguous questions.
func (a *Ambiguities) Watch(l Lookup) Lookup {
	return func(ctx context.Context, tenant string, platform *string) (Answer, error) {
		answer, err := l(ctx, tenant, platform)
		if platform == nil {
			a.note(tenant, err)
		}
		return answer, err
	}
}

func (a *Ambiguities) note(tenant string, err error) {
	_, several := errors.AsType[*AmbiguousError](err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := a.asked[tenant]; !several {
		if known && (err == nil || errors.Is(err, ErrUnknown)) { // it is not any more
			delete(a.asked, tenant)
		}
		return
	} else if !known && len(a.asked) >= maxAmbiguities {
		return
	}
	if a.asked == nil {
		a.asked = make(map[string]time.Time)
	}
	a.asked[tenant] = time.Now()
}

// Lately returns the codes of these tenants.
func (a *Ambiguities) Lately() (codes []string) {
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
