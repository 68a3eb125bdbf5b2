package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"time"
)

// Held is one line of a rehearsal: what was played, whether the receiver did well, and its answer.
type Held struct {
	What string
	OK   bool
	How  string
	slow bool // that is all that was wrong
}

const (
	enough   = time.Second     // how long a receiver may take to answer
	patience = 5 * time.Second // how long the rehearsal waits for an answer
)

// play is something that happens to every receiver sooner or later.
type play struct {
	what    string
	send    func() []Entry
	refused bool // the receiver has to refuse it
}

// Rehearse plays against a receiver what the real world will, on tenants that nobody has, and calls
// say for each play.
func Rehearse(ctx context.Context, s *Sender, platform string, say func(Held)) {
	s.Client.Timeout = patience
	r := &rehearsal{ctx, s, platform, "rehearsal-" + strings.ToLower(rand.Text()[:6]) + "-"}
	for _, p := range r.plays() {
		h := p.judge(p.send())
		if h.slow { // maybe only this machine was, at that moment
			h = p.judge(p.send())
		}
		if ctx.Err() != nil {
			return
		}
		say(h)
	}
}

type rehearsal struct {
	ctx              context.Context
	sender           *Sender
	platform, prefix string
}

func (r *rehearsal) plays() []play {
	users := map[string]*int{"users": new(10)}
	a := r.state("a", users).Webhook()
	b := r.state("a", map[string]*int{"users": new(10), "sso": nil}).Webhook()
	canceled := r.state("b", users).tenant()
	canceled.subs[0].State = "canceled"
	nulls := r.state("c", map[string]*int{"sso": nil}).tenant()
	nulls.withoutIDs, nulls.withoutProducts, nulls.withNulls, nulls.record.Account.Contacts = true, true, true, nil
	nulls.subs[0].EndDate, nulls.subs[0].Plan = nil, Plan{nil, "Individual agreement"}
	large := make(map[string]*int)
	for i := range 1150 { // each occurs twice: in the change, and in its subscription
		large[fmt.Sprintf("feature-%04d-of-many", i)] = new(i)
	}
	send := func(bodies ...[]byte) func() []Entry { return func() []Entry { return r.send(bodies...) } }
	plays := []play{
		{"a tenant that it never saw", send(a), false},
		{"a copy of that webhook", send(a), false},
		{"a change and back: A, B, A", send(a, b, a), false},
		{"again after a timeout that was a success", func() []Entry { return r.again(b) }, false},
		{"ten tenants at once", r.ten, false},
		{"an empty list of features", send(r.state("a", nil).Webhook()), false},
		{"a canceled subscription", send(canceled.render()), false},
		{"nulls", send(nulls.render()), false},
		{"a payload of 200 KB", send(r.state("d", large).Webhook()), false},
	}
	if r.sender.Sign != nil {
		plays = append(plays, play{"a forged signature, to be refused", func() []Entry { return r.forged(b) }, true})
	}
	return plays
}

func (r *rehearsal) state(tenant string, features map[string]*int) State {
	return State{r.prefix + tenant, r.platform, features}
}

func (r *rehearsal) send(bodies ...[]byte) (list []Entry) {
	for _, body := range bodies {
		list = append(list, r.sender.Send(r.ctx, body))
	}
	return list
}

// again hangs up as soon as the webhook is sent, as a sender does that waits no longer, and sends it
// once more.
func (r *rehearsal) again(body []byte) []Entry {
	ctx, hangUp := context.WithCancel(r.ctx)
	defer hangUp()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { hangUp() }})
	r.sender.Send(ctx, body)
	return r.send(body)
}

func (r *rehearsal) ten() []Entry {
	list := make([]Entry, 10)
	var all sync.WaitGroup
	for i := range list {
		body := r.state(fmt.Sprint("ten-", i), map[string]*int{"users": new(i)}).Webhook()
		all.Go(func() { list[i] = r.sender.Send(r.ctx, body) })
	}
	all.Wait()
	return list
}

// forged sends a webhook with the signature of another one.
func (r *rehearsal) forged(body []byte) []Entry {
	sign := r.sender.Sign
	defer func() { r.sender.Sign = sign }()
	r.sender.Sign = func(h http.Header, _ []byte) { sign(h, []byte("{}")) }
	return r.send(body)
}

// judge says how long the slowest of the answers took, or which was the first that is not good.
func (p play) judge(list []Entry) Held {
	for _, e := range list {
		line, _, _ := strings.Cut(strings.TrimSpace(e.Answer), "\n")
		switch {
		case e.Status == 0:
			return Held{What: p.what, How: e.Reply.String()}
		case p.refused && e.Status/100 != 4:
			return Held{What: p.what, How: e.Reply.String() + ", want 401"}
		case !p.refused && !e.OK():
			return Held{What: p.what, How: strings.TrimSpace(e.Reply.String() + " " + line)}
		}
	}
	slowest := slices.MaxFunc(list, func(a, b Entry) int { return cmp.Compare(a.Took, b.Took) })
	took := slowest.Took.Round(time.Millisecond)
	if took > enough {
		return Held{What: p.what, How: fmt.Sprintf("%s after %s, want at most %s", slowest.Reply, took, enough), slow: true}
	}
	return Held{What: p.what, OK: true, How: fmt.Sprintf("%s in %s", slowest.Reply, took)}
}
