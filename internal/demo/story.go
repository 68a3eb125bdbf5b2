package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/sandbox"
	"usher/internal/secret"
	"usher/internal/serve"
	"usher/internal/settings"
)

// The demo's speed: a person reads along. Tests set it higher.
var (
	beat         = 2 * time.Second // from one step of the story to the next
	webhookEvery = 4 * time.Second // afterwards
)

// story is what the demo shows in its first half minute. One goroutine tells it, so that its lines
// are in the order in which things happen. It uses the sandbox and usher's ports, as a user can.
type story struct {
	ctx                        context.Context // ends with the demo
	box                        *sandbox.Sandbox
	calls, entitlements, admin port
	say                        *narrator
	level                      *slog.LevelVar // of the log; nil if the user chose one
	pending                    []pending      // webhooks that the receiver has not taken yet, the oldest first
}

// pending is a webhook that waits.
type pending struct {
	id, what string
	tries    int // that the story has mentioned
}

// yours reports whether the webhooks go to the user's own receiver.
func (s *story) yours() bool { return s.box.Receiver == nil }

// tell tells the story, and reports whether it came to the end before the demo did. It starts
// program only after the step about a 401: else one of its calls could get that 401.
func (s *story) tell(program func()) bool {
	type step struct {
		title string
		play  func()
	}
	steps := []step{
		// This comes before any pause, so that the page has something to show as soon as it is opened.
		{"The service sends a webhook. usher delivers it to your receiver.", func() { s.webhook("acme: 10 users", acme(10)) }},
		{"A program calls the billing service. It has no token; usher adds one.", func() {
			s.result("call without usher", query(s.ctx, port{http.DefaultClient, s.box.URL, ""}))
			s.result("call through usher", query(s.ctx, s.calls))
		}},
		{"The service revokes the token early. usher gets a new token and resends\nthe call. The program does not notice.", func() { s.revoke(); program() }},
		{"A webhook changes what the tenant acme may use. Your code can ask usher.", func() { s.check(); s.webhook("acme: sso added", acme(10, "sso")); s.check() }},
		{"The service sends the same webhook again. Your receiver already has it.", func() { s.webhook("acme: sso added", acme(10, "sso")) }},
		{"acme goes back to what it had. The webhook equals the first one, byte for\nbyte, but it is a change and not a copy: usher delivers it.", func() { s.webhook("acme: 10 users", acme(10)); s.check() }},
		{"Somebody forges a webhook, without the secret.", func() { s.forge(); s.check() }},
	}
	if !s.yours() {
		steps = append(steps,
			step{"Your receiver goes down. Webhooks wait in usher's inbox: none is lost.", s.outage},
			step{"Your receiver refuses a webhook for good. usher parks it until you decide.", s.park})
	}
	for i, step := range steps {
		s.say.step(i+1, step.title)
		step.play()
		if !pause(s.ctx, beat) {
			return false
		}
		s.news(s.say.result)
	}
	return true
}

// acme is the state of the tenant that the story is about.
func acme(users int, more ...string) sandbox.State {
	features := map[string]*int{"users": &users}
	for _, code := range more {
		features[code] = nil
	}
	return sandbox.State{Tenant: "acme", Features: features}
}

func (s *story) revoke() {
	defer s.staged()()
	_, before := s.box.Calls()
	s.box.Revoke()
	s.result("token revoked", "")
	answer := query(s.ctx, s.calls)
	if _, now := s.box.Calls(); now > before {
		s.result("the service's answer to usher", "401")
	}
	s.result("usher's answer to the program", answer)
}

// forge sends a webhook from somebody who does not know the secret.
func (s *story) forge() {
	forger := sandbox.NewSender(0, s.box.Sender.URLs[0])
	forger.Client = s.box.Sender.Client
	e := forger.Send(s.ctx, acme(1000, "sso").Webhook())
	s.result("webhook  acme: sso and 1000 users", s.outcome("", e))
}

func (s *story) outage() {
	defer s.staged()()
	s.box.Receiver.Fail(sandbox.Fault{Status: http.StatusServiceUnavailable})
	s.result("receiver down", "")
	var sent []string
	for _, users := range []int{25, 50, 100} {
		sent = append(sent, s.webhook(fmt.Sprintf("acme: %d users", users), acme(users)))
	}
	s.box.Receiver.Fail(sandbox.Fault{})
	s.result("receiver back", "")
	for len(s.pending) > 0 && pause(s.ctx, 20*time.Millisecond) {
		s.news(func(string, string) {})
	}
	var came []string
	for _, d := range s.box.Receiver.Deliveries() {
		if d.Applied && slices.Contains(sent, d.WebhookID) {
			came = append(came, d.WebhookID)
		}
	}
	order := ""
	if slices.Equal(came, sent) {
		order = " in order"
	}
	s.result("", fmt.Sprintf("%d delivered%s, %d waiting", len(came), order, len(s.pending)))
}

func (s *story) park() {
	defer s.staged()()
	s.box.Receiver.Fail(sandbox.Fault{Status: http.StatusUnprocessableEntity})
	id := s.webhook("acme: 200 users", acme(200))
	s.box.Receiver.Fail(sandbox.Fault{})
	s.result("receiver fixed", "")
	number := s.webhooks()[id].ID
	s.admin.ask(s.ctx, http.MethodPost, "/api/webhooks/"+number+"/redeliver", "", nil)
	s.result("usher inbox redeliver "+number, s.becomes(id))
}

// webhook sends a snapshot, tells what became of it, and returns its id.
func (s *story) webhook(what string, state sandbox.State) (id string) {
	e := s.box.Sender.Send(s.ctx, state.Webhook())
	s.result("webhook  "+what, s.outcome(what, e))
	return webhookID(e)
}

// outcome says what usher answered to a webhook and, if usher took it in, whether the receiver has
// it.
func (s *story) outcome(what string, e sandbox.SentWebhook) string {
	answer := e.Reply.String()
	switch {
	case e.Status == 0:
		return "no answer"
	case e.Decision == "duplicate":
		return answer + ", dropped"
	case e.Decision != "queued":
		return answer
	}
	s.pending = append(s.pending, pending{id: webhookID(e), what: what})
	return answer + ", " + s.becomes(webhookID(e))
}

// becomes waits a moment until a webhook is delivered, refused or tried in vain, and says which.
func (s *story) becomes(id string) string {
	patience := 2 * time.Second
	if len(s.pending) > 1 {
		patience = 300 * time.Millisecond // it may wait behind another
	}
	var w webhook
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if w = s.webhooks()[id]; !w.waits() || w.Tries > 0 || !pause(s.ctx, 10*time.Millisecond) {
			break
		}
	}
	if i := slices.IndexFunc(s.pending, func(p pending) bool { return p.id == id }); i >= 0 {
		if s.pending[i].tries = w.Tries; !w.waits() {
			s.pending = slices.Delete(s.pending, i, i+1)
		}
	}
	if w.waits() && !s.yours() {
		return fmt.Sprintf("%d waiting", len(s.pending))
	}
	return s.word(w)
}

// word says how a webhook stands, and what your own receiver answered.
func (s *story) word(w webhook) string {
	state := cmp.Or(w.State, "waiting")
	if s.yours() && w.Tries > 0 || state == "parked" {
		state += " (" + w.said() + ")"
	}
	return state
}

// news tells what became of the webhooks that waited, and of each try of the oldest.
func (s *story) news(tell func(what, result string)) {
	if len(s.pending) == 0 {
		return
	}
	now := s.webhooks()
	if s.ctx.Err() != nil {
		return
	}
	s.pending = slices.DeleteFunc(s.pending, func(p pending) bool {
		w := now[p.id]
		if !w.waits() {
			tell(p.what, fmt.Sprintf("%s at try %d", s.word(w), w.Tries))
		}
		return !w.waits()
	})
	if len(s.pending) > 0 && s.yours() {
		oldest := &s.pending[0]
		if w := now[oldest.id]; w.Tries > oldest.tries {
			tell(oldest.what, fmt.Sprintf("try %d: %s, waiting", w.Tries, w.said()))
			oldest.tries = w.Tries
		}
	}
}

// result prints a line, a moment after the one before it.
func (s *story) result(what, result string) {
	if s.ctx.Err() == nil {
		s.say.result(what, result)
	}
	pause(s.ctx, beat/4)
}

// staged keeps warnings about what the demo does on purpose out of the log. What your own receiver
// does the story tells.
func (s *story) staged() (over func()) {
	if s.level == nil {
		return func() {}
	}
	s.level.Set(slog.LevelError)
	return func() {
		if !s.yours() {
			s.level.Set(slog.LevelWarn)
		}
	}
}

// goOn sends a webhook every few seconds until the demo ends: mostly a change, sometimes a copy.
// Sometimes the built-in receiver is down for a while.
func (s *story) goOn() {
	over := func() {}
	for n := 0; s.ctx.Err() == nil; n++ {
		switch {
		case s.yours():
		case n%12 == 6:
			over = s.staged()
			s.box.Receiver.Fail(sandbox.Fault{Status: http.StatusServiceUnavailable})
			s.say.event("the receiver is down", "")
		case n%12 == 8:
			s.box.Receiver.Fail(sandbox.Fault{})
			s.say.event("the receiver is back", "")
		case n%12 == 10:
			over()
		}
		entry := s.box.Sender.Next(s.ctx)
		outcome := s.outcome(entry.Summary, entry)
		if s.ctx.Err() != nil {
			return
		}
		s.say.event(entry.Summary, outcome)
		for due := time.Now().Add(webhookEvery); time.Now().Before(due) && pause(s.ctx, 100*time.Millisecond); {
			s.news(s.say.event)
		}
	}
}

// port is one of usher's, or the service itself.
type port struct {
	client      *http.Client
	base, token string
}

// portAt is the port at an address, with the first of its tokens.
func portAt(address, tokens string) port {
	p := port{}
	p.client, p.base = serve.Client(address)
	if list, err := secret.Tokens(tokens); err == nil {
		p.token = list[0].Value
	}
	return p
}

// ask sends a request, decodes the answer if it is JSON, and returns its status: 0 for none.
func (p port) ask(ctx context.Context, method, path, body string, result any) int {
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(result)
	return resp.StatusCode
}

// query calls the billing service, and says in words what was answered.
func query(ctx context.Context, p port) string {
	var answer struct {
		Data struct{ Accounts []struct{ Name string } }
	}
	status := p.ask(ctx, http.MethodPost, "/graphql", `{"query":"{ accounts(limit: 3) { id name } }"}`, &answer)
	switch status {
	case 0:
		return "no answer"
	case http.StatusOK:
		return fmt.Sprintf("%d, %d accounts", status, len(answer.Data.Accounts))
	}
	return fmt.Sprintf("%d %s", status, http.StatusText(status))
}

// check asks whether acme may use sso, as a program of the customer would.
func (s *story) check() {
	status := s.entitlements.ask(s.ctx, http.MethodGet, "/v1/check?tenant=acme&feature=sso", "", nil)
	word := map[int]string{0: "no answer", http.StatusNoContent: "204 yes", http.StatusForbidden: "403 no"}[status]
	s.result("check    may acme use sso?", cmp.Or(word, fmt.Sprint(status)))
}

// webhook is one as the admin port shows it.
type webhook struct {
	ID, Webhook, State, Answer string
	Tries                      int
}

// waits reports whether nobody has taken the webhook yet, nor refused it for good, as far as is known.
func (w webhook) waits() bool { return w.State == "waiting" || w.State == "" }

// said returns the receiver's status, the first word of its answer.
func (w webhook) said() string {
	if len(w.Answer) >= 3 && strings.Trim(w.Answer[:3], "0123456789") == "" {
		return w.Answer[:3]
	}
	return "no answer"
}

// webhooks asks usher for the webhooks that it keeps, as 'usher inbox ls' does.
func (s *story) webhooks() map[string]webhook {
	var list struct{ Webhooks []webhook }
	s.admin.ask(s.ctx, http.MethodGet, "/api/webhooks?inbox=true&limit=1000", "", &list)
	byID := make(map[string]webhook)
	for _, w := range list.Webhooks {
		byID[w.Webhook] = w
	}
	return byID
}

// webhookID returns the webhook's id, from usher's answer.
func webhookID(e sandbox.SentWebhook) string {
	var a struct{ Webhook string }
	_ = json.Unmarshal([]byte(e.Answer), &a)
	return a.Webhook
}

// legacyProgram calls as a program without OAuth would: a few calls a second, sometimes more
// and sometimes fewer, so that the page has something to show.
func legacyProgram(ctx context.Context, calls port) {
	for n := 0; pause(ctx, 300*time.Millisecond+time.Duration(200*math.Sin(float64(n)/150))*time.Millisecond); n++ {
		query(ctx, calls)
	}
}

// pause waits for d. It returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// narrator tells a person what the demo does, in lines of up to 80 columns.
type narrator struct {
	out    io.Writer
	colour bool
}

const (
	storyColumns = 46 // the width of what happens, before its result
	eventColumns = 49 // the same, with the time
)

func (n *narrator) paint(code, s string) string {
	if !n.colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (n *narrator) bold(s string) string { return n.paint("1", s) }

func (n *narrator) welcome(at serve.Addresses, path, receiver string, replaced []string) {
	port := at.Calls + "/graphql"
	if strings.HasPrefix(at.Calls, "unix:") {
		port = at.Calls
	}
	does := "runs on this machine alone; nothing leaves it"
	if receiver != "" {
		does = "sends its webhooks to your receiver"
	}
	fmt.Fprintf(n.out, "%s %s. Ctrl-C ends it.\n\n", n.bold("usher demo"), does)
	fmt.Fprintf(n.out, "  calls         %s\n", n.bold(port))
	fmt.Fprintf(n.out, "  webhooks      %s\n", n.bold(at.Webhooks+path))
	fmt.Fprintf(n.out, "  entitlements  %s\n", n.bold(at.Entitlements))
	fmt.Fprintf(n.out, "  admin page    %s\n", n.bold(at.Admin))
	if u, err := url.Parse(receiver); err == nil && receiver != "" {
		fmt.Fprintf(n.out, "  your receiver %s\n", n.bold(u.Scheme+"://"+u.Host)) // its path may be a secret
	}
	for _, addr := range replaced {
		fmt.Fprintf(n.out, "  (%s is taken, so a free port is used instead)\n", addr)
	}
	fmt.Fprintf(n.out, "\nCall it yourself, without a token:\n\n  curl -s %s/graphql \\\n", curlBase(at.Calls))
	fmt.Fprintf(n.out, "    -H Content-Type:application/json -d '{\"query\":\"{accounts(limit:3){name}}\"}'\n")
}

// hints prints commands to try, exactly as the user has to type them.
func (n *narrator) hints(at serve.Addresses, box, program string) {
	ask := program
	if addr := strings.TrimPrefix(at.Admin, "http://"); addr != settings.Default("USHER_ADMIN_LISTEN") {
		ask = "USHER_ADMIN_LISTEN=" + addr + " " + program
	}
	fmt.Fprintf(n.out, "\nTry these in another terminal:\n\n")
	fmt.Fprintf(n.out, "  curl -s %s/v1/entitlements/acme/users\n", curlBase(at.Entitlements))
	fmt.Fprintf(n.out, "  %s entitlements acme\n  %s inbox ls --limit 5\n", ask, ask)
	fmt.Fprintf(n.out, "  %s sandbox send acme users=300 --at %s\n", program, box)
	fmt.Fprintf(n.out, "\nThe admin page shows each webhook and what it changed:  %s\n", n.bold(at.Admin))
	fmt.Fprintf(n.out, "\nFrom now on a webhook comes every few seconds.\n\n")
}

// curlBase is an address as curl takes it.
func curlBase(address string) string {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return "--unix-socket '" + path + "' http://localhost"
	}
	return address
}

func (n *narrator) step(number int, title string) {
	first, rest, more := strings.Cut(title, "\n")
	fmt.Fprintf(n.out, "\n%s\n", n.bold(fmt.Sprintf("%d. %s", number, first)))
	if more {
		fmt.Fprintf(n.out, "%s\n", n.bold("   "+rest))
	}
}

// result prints one thing that happened, and its result.
func (n *narrator) result(what, result string) {
	n.columns("   "+what, storyColumns, result)
}

// event prints a result with its time.
func (n *narrator) event(what, result string) {
	n.columns(time.Now().Format(time.TimeOnly)+"  "+what, eventColumns, result)
}

func (n *narrator) columns(left string, width int, right string) {
	if right == "" {
		fmt.Fprintln(n.out, left)
		return
	}
	fmt.Fprintf(n.out, "%-*s%s\n", width, cut(left, width-1), n.paint(colourOf(right), right))
}

// colourOf returns red for what was refused, yellow for what waits or was dropped, otherwise green.
func colourOf(result string) string {
	switch {
	case strings.HasPrefix(result, "4"), strings.HasPrefix(result, "5"), strings.HasPrefix(result, "no"), strings.Contains(result, "parked"):
		return "31"
	case strings.Contains(result, "dropped"), strings.Contains(result, "waiting") && !strings.Contains(result, "0 waiting"):
		return "33"
	}
	return "32"
}

// cut shortens s to at most this many characters.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
