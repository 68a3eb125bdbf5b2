// Package lease decides which replica has which part of the lanes.
//
// A lease is a message that says which replica has a part. Its holder writes it again
// every second. It may deliver for holdTime, counted from when it began to write the last lease
// that the servers took. The other replicas take the part over when they have seen no new lease
// for Time. That is longer and begins later, so two replicas never deliver at once, whatever
// the network does, as long as their clocks run at about the same speed. A replica that was
// stopped for a while checks its lease before its next write to the receiver.
//
// A claim is written once, when a part is taken over. The holder's notes name it, so the
// servers refuse a note of a former holder that arrives late.
//
// Replicas tell each other that they are there. Each takes its share of the parts, and gives back what it has beyond that.
//
// JetStream can pin a consumer to one client, too. But only the consumer's leader knows the pin:
// the next leader pins the first client that asks, while the former one still delivers, and
// the order in a lane would be lost.
package lease

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"usher/internal/inbox/record"
	"usher/internal/inbox/shared/message"
	"usher/internal/inbox/shared/servers"
)

const (
	// Time is how long the others wait for a holder that they no longer hear.
	Time       = 5 * time.Second
	renewEvery = time.Second
	holdTime   = 4 * time.Second
	// peerTime is how long a replica counts after it was last heard of. It is shorter than
	// Time: when a lease runs out the others know how many they are.
	peerTime = 4 * time.Second
	// balanceEvery is how often a replica looks whether it has its share.
	balanceEvery = 250 * time.Millisecond
	// handOverTime is how long deliveries may go on in a part that another replica is to have.
	handOverTime = 5 * time.Second
)

// Config is what the keeper of a replica's leases needs to know. All but Changed is required.
type Config struct {
	Servers  *servers.Servers
	Subjects message.Subjects
	// Self names this replica.
	Self string
	// Changed is told when this replica begins to deliver a part (taken), and when it
	// ends: by itself (given_back), or because its lease ran out (lost). May be nil.
	Changed func(change string)
	Log     *slog.Logger
}

// Keeper is what a replica knows of all leases, and of the other replicas that are there.
type Keeper struct {
	Config
	stir    chan struct{} // something has changed
	running sync.WaitGroup

	mu    sync.Mutex           // guards what follows
	seen  []seen               // of each part
	held  []*Lease             // of each part; nil: it is not this replica's
	peers map[string]time.Time // when others were last heard of
}

// content is that of a lease.
type content struct {
	Holder      string `json:"holder"` // empty: it was given back
	Host        string `json:"host"`   // only to be read by people
	record.Load        // of the part
}

// seen is a lease as this replica last saw it.
type seen struct {
	content
	seq uint64
	at  time.Time // by this replica's clock
}

// New makes a keeper that knows nothing yet.
func New(cfg Config) *Keeper {
	return &Keeper{
		Config: cfg, stir: make(chan struct{}, 1), peers: make(map[string]time.Time),
		seen: make([]seen, cfg.Subjects.Parts), held: make([]*Lease, cfg.Subjects.Parts),
	}
}

func (k *Keeper) poke() {
	select {
	case k.stir <- struct{}{}:
	default:
	}
}

// write writes that holder has a part, if the lease's last message is still last.
func (k *Keeper) write(ctx context.Context, part int, holder string, load record.Load, last uint64) (*hold, error) {
	host, _ := os.Hostname()
	data, err := json.Marshal(content{Holder: holder, Host: host, Load: load})
	if err != nil {
		return nil, err
	}
	m := nats.NewMsg(k.Subjects.Part(part, "lease"))
	m.Data = data
	servers.Rollup(m)
	servers.Expect(m, last)
	h := &hold{from: time.Now()}
	h.seq, err = k.Servers.Publish(ctx, m)
	return h, err
}

// relearn asks the servers for a lease, where they did not have the message that was expected:
// somebody may have deleted it, and without it nobody could have the lease again.
func (k *Keeper) relearn(ctx context.Context, part int, was uint64) (now seen, err error) {
	m, err := k.Servers.LastWaiting(ctx, k.Subjects.Part(part, "lease"))
	switch {
	case servers.Missing(err):
	case err != nil:
		return now, err
	default:
		now.seq = m.Sequence
		_ = json.Unmarshal(m.Data, &now.content) // what can't be read runs out
	}
	k.saw(part, now, was)
	return now, nil
}

// saw takes in a lease. An older one than is known does not count, unless that is was.
func (k *Keeper) saw(part int, now seen, was uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := &k.seen[part]
	if now.seq == known.seq || now.seq < known.seq && known.seq != was {
		return
	}
	now.at = time.Now()
	if now.Holder != known.Holder {
		defer k.poke()
	}
	*known = now
}

// Follow reads who has what, until ctx ends.
func (k *Keeper) Follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := k.Servers.Consume(ctx, jetstream.ConsumerConfig{
			FilterSubject: k.Subjects.Prefix + "*.lease", DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy,
		}, func() { k.Servers.SetBlind(false) }, k.take)
		k.Servers.SetBlind(true)
		if ctx.Err() == nil {
			k.Log.Debug("cannot follow the inbox's leases", "err", err)
			servers.Sleep(ctx, 100*time.Millisecond)
		}
	}
}

func (k *Keeper) take(m jetstream.Msg, seq uint64) {
	part := k.Subjects.PartOf(strings.TrimPrefix(m.Subject(), k.Subjects.Prefix))
	now := seen{seq: seq}
	if err := json.Unmarshal(m.Data(), &now.content); err != nil {
		k.Log.Error("cannot read an inbox lease", "part", part, "err", err)
	}
	k.saw(part, now, 0)
}

// Free says whether no other replica can be delivering a part.
func (k *Keeper) Free(part int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.free(part)
}

// free says whether a part can be taken. By the monotonic clock alone: the other one can be set
// forward, and the holder's was not. Of one that was not read yet the servers refuse another lease. k.mu is held.
func (k *Keeper) free(part int) bool {
	seen := &k.seen[part]
	return seen.Holder == "" || seen.Holder == k.Self || time.Since(seen.at) > Time
}

// Term returns what this replica does with a part; nil: it does not have it.
func (k *Keeper) Term(part int) Term {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.held[part]; l != nil {
		return l.term
	}
	return nil
}

// Held is how many parts this replica delivers.
func (k *Keeper) Held() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.held {
		if l != nil && l.Held() {
			n++
		}
	}
	return n
}

// Load is what waits or is parked in all parts: of its own this replica knows, of the others what
// their leases say. known is false until all of them were read.
func (k *Keeper) Load() (sum record.Load, known bool) {
	k.mu.Lock()
	all, held := slices.Clone(k.seen), slices.Clone(k.held)
	k.mu.Unlock()
	known = true
	for part, seen := range all {
		one := seen.Load
		if l := held[part]; l != nil {
			one = l.term.Load()
		} else if seen.seq == 0 {
			known = false
		}
		sum.Bytes, sum.Waiting = sum.Bytes+one.Bytes, sum.Waiting+one.Waiting
	}
	return sum, known
}
