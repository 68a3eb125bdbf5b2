package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// ScenarioResult is how a receiver did in one scenario of a rehearsal.
type ScenarioResult struct {
	Scenario string
	OK       bool
	Skipped  bool     // the receiver refuses no purchase, so its refusal could not be tried
	Answer   string   // the receiver's answer, and what is wrong with it
	Mistakes []string // if it failed: what receivers usually do wrong there
	slow     bool     // the answers were good, but at least one came too late
}

const maxAnswerTime = time.Second // an answer that takes longer fails the scenario

// RefusedTenant is the tenant whose purchase a receiver refuses that wants to rehearse a refusal.
const RefusedTenant = "rehearsal-refused"

// scenario is something that every receiver meets sooner or later.
type scenario struct {
	name    string
	send    func() []SentWebhook
	refused bool // the receiver has to refuse these webhooks
	buyer   bool // the receiver may refuse this purchase, and tells the buyer why

	mistakes []string // what receivers usually do wrong here
}

// A RefusedError says that a receiver takes no webhook at all: it could not be reached, or refuses the sender. This
// says nothing about how it does in the scenarios.
type RefusedError struct{ Reply }

func (e *RefusedError) Error() string { return e.To + ": " + e.Reply.String() }

// Rehearse sends a receiver what it has to expect in production, for tenants that it does not have, and
// calls report after each scenario. If the receiver refuses the very first webhook, whatever it may be, Rehearse ends
// with a *RefusedError.
func Rehearse(ctx context.Context, s *Sender, platform string, report func(ScenarioResult)) error {
	s.Attempts = 1
	r := &rehearsal{ctx, s, platform, "rehearsal-" + strings.ToLower(rand.Text()[:6]) + "-"}
	for i, sc := range r.scenarios() {
		sent := sc.send()
		if reply := sent[0].Reply; i == 0 && ctx.Err() == nil && reply.refusesSender() {
			return &RefusedError{reply}
		}
		result := sc.judge(sent)
		if result.slow { // perhaps this machine was busy: try once more
			result = sc.judge(sc.send())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !result.OK && !result.Skipped {
			result.Mistakes = sc.mistakes
		}
		report(result)
	}
	return nil
}

// refusesSender reports whether nothing that the sender sends would be taken.
func (r *Reply) refusesSender() bool {
	return r.unreached || r.Status == http.StatusUnauthorized || r.Status == http.StatusForbidden
}

type rehearsal struct {
	ctx              context.Context
	sender           *Sender
	platform, prefix string
}

func (r *rehearsal) scenarios() []scenario {
	users := map[string]*int{"users": new(10)}
	a := r.state("a", users).Webhook()
	b := r.state("a", map[string]*int{"users": new(10), "sso": nil}).Webhook()
	canceled := r.state("b", users).tenant()
	canceled.subs[0].State = "canceled"
	nulls := r.state("c", map[string]*int{"sso": nil}).tenant()
	nulls.withoutIDs, nulls.withoutProducts, nulls.withNulls = true, true, true
	nulls.record.Account.Contacts = nil
	nulls.subs[0].EndDate, nulls.subs[0].Plan = nil, Plan{nil, "Individual agreement"}
	large := make(map[string]*int)
	for i := range 1150 { // each feature occurs twice: in the change, and in its subscription
		large[fmt.Sprintf("feature-%04d-of-many", i)] = new(i)
	}
	send := func(bodies ...[]byte) func() []SentWebhook { return func() []SentWebhook { return r.send(bodies...) } }
	withoutPlatform := platformOf.ReplaceAll(nulls.render(), []byte(`"platform":null`))
	list := []scenario{
		{
			name: "a tenant that it never saw",
			send: send(a),
			mistakes: []string{
				"it only updates tenants that it knows",
				"it knows only certain platforms: name one with --platform",
			},
		},
		{
			name:     "a copy of that webhook",
			send:     send(a),
			mistakes: []string{"it inserts where it should replace"},
		},
		{
			name:     "a change and back: A, B, A",
			send:     send(a, b, a),
			mistakes: []string{"it drops a webhook that it has seen before: the second A"},
		},
		{
			name: "again after a timeout that was a success",
			send: func() []SentWebhook { return r.again(b) },
			mistakes: []string{
				"it cancels the transaction when the connection ends",
				"two transactions lock each other",
			},
		},
		{
			name: "ten tenants at once",
			send: r.ten,
			mistakes: []string{
				"it has one lock, or one connection, for all tenants",
				"SQLite answers that the database is locked",
			},
		},
		{
			name:     "an empty list of features",
			send:     send(r.state("a", nil).Webhook()),
			mistakes: []string{`it takes an empty list for "no change"`},
		},
		{
			name:     "a canceled subscription",
			send:     send(canceled.render()),
			mistakes: []string{"it wants an active subscription"},
		},
		{
			name:     "nulls",
			send:     send(nulls.render(), withoutPlatform),
			mistakes: []string{"it reads a field of something that is null"},
		},
		{
			name:     "a payload of 200 KB",
			send:     send(r.state("d", large).Webhook()),
			mistakes: []string{"a limit of the web server or framework", "a query for each feature"},
		},
		{
			name:     "a checkout, to be allowed",
			send:     func() []SentWebhook { return []SentWebhook{r.sender.Ask(r.ctx, r.state("e", users))} },
			mistakes: []string{"it rejects a type that it does not know, and so blocks every purchase"},
		},
		{
			name:     "a checkout, to be refused",
			send:     func() []SentWebhook { return []SentWebhook{r.sender.Ask(r.ctx, State{RefusedTenant, "", users})} },
			buyer:    true,
			mistakes: []string{"its answer is not a JSON array of sentences for the buyer"},
		},
	}
	if r.sender.SigningKey != "" {
		list = append(list, scenario{
			name:     "a forged signature, to be rejected",
			send:     func() []SentWebhook { return r.forged(b) },
			refused:  true,
			mistakes: []string{"it does not verify, or not the body"},
		})
	}
	return list
}

// platformOf matches the tenant's platform in a body. One that is null is another tenant.
var platformOf = regexp.MustCompile(`"platform":\{[^}]*\}`)

func (r *rehearsal) state(tenant string, features map[string]*int) State {
	return State{r.prefix + tenant, r.platform, features}
}

func (r *rehearsal) send(bodies ...[]byte) (list []SentWebhook) {
	for _, body := range bodies {
		list = append(list, r.sender.Send(r.ctx, body))
	}
	return list
}

// again hangs up once the webhook is sent, as a sender does whose timeout has expired, and sends the webhook once
// more. It hangs up a moment later than net/http says: then the request's end may still be in a buffer.
func (r *rehearsal) again(body []byte) []SentWebhook {
	ctx, hangUp := context.WithCancel(r.ctx)
	defer hangUp()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		time.AfterFunc(100*time.Millisecond, hangUp)
	}})
	r.sender.Send(ctx, body)
	return r.send(body)
}

func (r *rehearsal) ten() []SentWebhook {
	list := make([]SentWebhook, 10)
	var all sync.WaitGroup
	for i := range list {
		body := r.state(fmt.Sprint("ten-", i), map[string]*int{"users": new(i)}).Webhook()
		all.Go(func() { list[i] = r.sender.Send(r.ctx, body) })
	}
	all.Wait()
	return list
}

// forged sends a webhook with the signature of another one.
func (r *rehearsal) forged(body []byte) []SentWebhook {
	r.sender.forge = true
	defer func() { r.sender.forge = false }()
	return r.send(body)
}

// judge returns the first answer that fails the scenario or, if all are good, the slowest one.
func (sc scenario) judge(list []SentWebhook) ScenarioResult {
	for _, e := range list {
		line, _, _ := strings.Cut(strings.TrimSpace(e.Answer), "\n")
		switch {
		case e.Status == 0:
			return ScenarioResult{Scenario: sc.name, Answer: e.Reply.String()}
		case sc.buyer && e.OK():
			return ScenarioResult{Scenario: sc.name, Skipped: true, Answer: e.Reply.String() + ", it allows this one, too"}
		case sc.buyer && len(e.BuyerReads()) == 0:
			return ScenarioResult{Scenario: sc.name, Answer: strings.TrimSpace(e.Reply.String() + " " + line)}
		case sc.buyer:
		case sc.refused && e.Status/100 != 4:
			return ScenarioResult{Scenario: sc.name, Answer: e.Reply.String() + ", want 401"}
		case !sc.refused && !e.OK():
			return ScenarioResult{Scenario: sc.name, Answer: strings.TrimSpace(e.Reply.String() + " " + line)}
		}
	}
	slowest := slices.MaxFunc(list, func(a, b SentWebhook) int { return cmp.Compare(a.Took, b.Took) })
	took := slowest.Took.Round(time.Millisecond)
	if took > maxAnswerTime {
		return ScenarioResult{
			Scenario: sc.name,
			Answer:   fmt.Sprintf("%s after %s, want at most %s", slowest.Reply, took, maxAnswerTime),
			slow:     true,
		}
	}
	return ScenarioResult{Scenario: sc.name, OK: true, Answer: fmt.Sprintf("%s in %s", slowest.Reply, took)}
}
