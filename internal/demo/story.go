package demo

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"usher/internal/sandbox"
	"usher/internal/serve"
)

// The demo's speed: a person reads along. Tests set it higher.
var (
	beat         = 2 * time.Second // from one step of the story to the next
	webhookEvery = 4 * time.Second // afterwards
)

// story is what the demo shows in its first half minute. One goroutine tells it, so that its lines
// are in the order in which things happen.
type story struct {
	world  *world
	usher  *serve.Usher
	at     serve.Addresses
	path   string // of the gate
	say    *narrator
	level  *slog.LevelVar  // of the log; nil if the user chose one
	sender *sandbox.Sender // the billing service, for the tenant acme
	forger *sandbox.Sender // somebody who does not know the secret
	down   string          // the platform whose receiver is down, or none
	late   bool            // webhooks wait, or did, because a receiver is or was down
}

func newStory(w *world, u *serve.Usher, path string, say *narrator, level *slog.LevelVar) *story {
	s := &story{world: w, usher: u, at: u.Addresses(), path: path, say: say, level: level}
	s.sender, s.forger = s.newSender(webhookToken), s.newSender("not-the-secret")
	return s
}

func (s *story) newSender(token string) *sandbox.Sender {
	client, base := serve.Client(s.at.Webhooks)
	sender := sandbox.NewSender(base+s.path, uint64(time.Now().UnixNano()))
	sender.Header = http.Header{"Authorization": {"Bearer " + token}}
	sender.Client.Transport = client.Transport
	return sender
}

// tell tells the story, and reports whether it came to the end before ctx did. It starts
// program only after the step about a 401: else one of its calls could get that 401.
func (s *story) tell(ctx context.Context, program func()) bool {
	steps := []struct {
		title string
		play  func(context.Context)
	}{
		{"The service sends a webhook. usher delivers it to your receiver.", s.first},
		{"A program calls the billing service. It has no token; usher adds one.", s.call},
		{"The service revokes the token early. usher gets a new token and resends\nthe call. The program does not notice.", func(ctx context.Context) { s.revoke(ctx); program() }},
		{"A webhook changes what the tenant acme may use. Your code can ask usher.", s.change},
		{"The service sends the same webhook again. Your receiver already has it.", s.repeat},
		{"acme goes back to what it had. The webhook equals the first one, byte for\nbyte, but it is a change and not a copy: usher delivers it.", s.goBack},
		{"Somebody forges a webhook, without the secret.", s.forge},
		{"Your receiver goes down. Webhooks wait in usher's inbox: none is lost.", s.outage},
	}
	for i, step := range steps {
		s.say.step(i+1, step.title)
		step.play(ctx)
		if !pause(ctx, beat) {
			return false
		}
	}
	return true
}

// The snapshots of acme. The first and the second differ only in sso.
func acme(users int, more ...string) []byte {
	features := []string{fmt.Sprintf(`{"code":"users","name":"Users","quantity":%d}`, users)}
	for _, code := range more {
		features = append(features, fmt.Sprintf(`{"code":%q,"name":%q,"quantity":null}`, code, strings.ToUpper(code)))
	}
	return fmt.Appendf(nil, `{"type":%q,"payload":{"tenant":{"code":"acme","name":"Acme","platform":{"code":"crm","name":"CRM"}},"change":{"features":[%s],"subscriptions":[]}}}`,
		sandbox.EventType, strings.Join(features, ","))
}

func (s *story) call(ctx context.Context) {
	s.result(ctx, "call without usher", query(ctx, http.DefaultClient, s.world.urls[0]))
	s.result(ctx, "call through usher", s.throughUsher(ctx))
}

func (s *story) revoke(ctx context.Context) {
	defer s.staged()()
	_, before := s.world.billing.Calls()
	s.world.billing.Revoke()
	s.result(ctx, "token revoked", "")
	answer := s.throughUsher(ctx)
	if _, now := s.world.billing.Calls(); now > before {
		s.result(ctx, "the service's answer to usher", "401")
	}
	s.result(ctx, "usher's answer to the program", answer)
}

// first comes before any pause, so that the page has something to show as soon as it is opened.
func (s *story) first(ctx context.Context) { s.webhook(ctx, "acme: 10 users", acme(10)) }

func (s *story) change(ctx context.Context) {
	s.check(ctx)
	s.webhook(ctx, "acme: sso added", acme(10, "sso"))
	s.check(ctx)
}

func (s *story) repeat(ctx context.Context) { s.webhook(ctx, "acme: sso added", acme(10, "sso")) }

func (s *story) goBack(ctx context.Context) {
	s.webhook(ctx, "acme: 10 users", acme(10))
	s.check(ctx)
}

func (s *story) forge(ctx context.Context) {
	e, err := s.forger.Send(ctx, acme(1000, "sso"))
	s.result(ctx, "webhook  acme: sso and 1000 users", s.outcome(ctx, e, err))
	s.check(ctx)
}

func (s *story) outage(ctx context.Context) {
	defer s.staged()()
	s.setDown("crm")
	s.result(ctx, "receiver down", "")
	var sent []string
	for _, users := range []int{25, 50, 100} {
		sent = append(sent, s.webhook(ctx, fmt.Sprintf("acme: %d users", users), acme(users)))
	}
	s.setUp()
	s.result(ctx, "receiver back", "")
	for s.usher.Waiting() > 0 && pause(ctx, 20*time.Millisecond) {
	}
	s.late = false
	came := slices.DeleteFunc(s.world.applied(), func(id string) bool { return !slices.Contains(sent, id) })
	order := ""
	if slices.Equal(came, sent) {
		order = " in order"
	}
	s.result(ctx, "", fmt.Sprintf("%d delivered%s, %d waiting", len(came), order, s.usher.Waiting()))
}

// webhook sends a snapshot of acme, tells what became of it, and returns its id.
func (s *story) webhook(ctx context.Context, what string, body []byte) (id string) {
	e, err := s.sender.Send(ctx, body)
	s.result(ctx, "webhook  "+what, s.outcome(ctx, e, err))
	return webhookID(e)
}

// result prints a line, a moment after the one before it.
func (s *story) result(ctx context.Context, what, result string) {
	if ctx.Err() == nil {
		s.say.result(what, result)
	}
	pause(ctx, beat/4)
}

// staged keeps warnings about what the demo does on purpose out of the log.
func (s *story) staged() (over func()) {
	if s.level == nil {
		return func() {}
	}
	s.level.Set(slog.LevelError)
	return func() { s.level.Set(slog.LevelWarn) }
}

func (s *story) setDown(platform string) {
	s.down, s.late = platform, true
	s.world.receiver(platform).Behave(sandbox.Fault{Status: http.StatusServiceUnavailable})
}

func (s *story) setUp() {
	s.world.receiver(s.down).Behave(sandbox.Fault{})
	s.down = ""
}
