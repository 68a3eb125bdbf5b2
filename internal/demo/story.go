package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/inbox"
	"usher/internal/lane"
	"usher/internal/sandbox"
	"usher/internal/serve"
	"usher/internal/settings"
	"usher/internal/text"
)

// The speed of the demo, at which a person can read along. Tests make it faster.
var (
	beat         = 2 * time.Second // between two steps of the story
	webhookEvery = 4 * time.Second // between two webhooks after the story
)

// story is what the demo shows in its first half minute. One goroutine tells it, so that its lines are in the
// order of the events. It uses the sandbox, and usher's ports as a user does.
type story struct {
	ctx                        context.Context // ends with the demo
	box                        *sandbox.Sandbox
	calls, entitlements, admin *serve.Client
	say                        *narrator
	level                      *slog.LevelVar // the level of the log; nil if the user has chosen one
	pending                    []pending      // the webhooks that the receiver has not accepted yet, the oldest first
}

// pending is a webhook that waits for delivery.
type pending struct {
	id, what string
	tries    int // how many tries the story has printed
}

// ownReceiver reports whether the webhooks go to the user's own receiver.
func (s *story) ownReceiver() bool { return s.box.Receiver == nil }

// tell tells the story, and reports whether it came to its end before the demo did. It calls startProgram only
// after the step about a 401: otherwise a call of that program could get the 401.
func (s *story) tell(startProgram func()) bool {
	type step struct {
		title string
		play  func()
	}
	steps := []step{
		// A webhook comes first, so that the admin page has something to show when it is opened.
		{"The service sends a webhook. usher delivers it to your receiver.", func() {
			s.webhook("acme: 10 users", acme(10))
		}},
		{"A program calls the billing service. It has no token; usher adds one.", func() {
			s.result("call without usher", query(s.ctx, newClient(s.box.URL, "")))
			s.result("call through usher", query(s.ctx, s.calls))
		}},
		{"The service revokes the token early. usher gets a new token and resends\n" +
			"the call. The program does not notice.", func() {
			s.revoke()
			startProgram()
		}},
		{"A webhook changes what the tenant acme may use. Your code can ask usher.", func() {
			s.check()
			s.webhook("acme: sso added", acme(10, "sso"))
			s.check()
		}},
		{"The service sends the same webhook again. Your receiver already has it.", func() {
			s.webhook("acme: sso added", acme(10, "sso"))
		}},
		{"acme goes back to what it had. The webhook equals the first one, byte for\n" +
			"byte, but it is a change and not a copy: usher delivers it.", func() {
			s.webhook("acme: 10 users", acme(10))
			s.check()
		}},
		{"Somebody forges a webhook, without the secret.", func() { s.forge(); s.check() }},
	}
	if !s.ownReceiver() {
		steps = append(steps,
			step{"Your receiver goes down. Webhooks wait in usher's inbox: none is lost.", s.outage},
			step{"Your receiver does not accept a webhook. usher parks it until you decide.", s.park},
			step{"usher is unreachable while globex changes twice: the service drops both\n" +
				"webhooks. Its log has them, and usher finds there what it has missed.", s.missed})
	}
	for i, step := range steps {
		s.say.step(i+1, step.title)
		step.play()
		if !pause(s.ctx, beat) {
			return false
		}
		s.reportPending(s.say.result)
	}
	return true
}

// acme returns a state of acme, the tenant in the story.
func acme(users int, more ...string) sandbox.State { return sold("acme", users, more...) }

// sold returns a state of a tenant.
func sold(tenant string, users int, more ...string) sandbox.State {
	features := map[string]*int{"users": &users}
	for _, code := range more {
		features[code] = nil
	}
	return sandbox.State{Tenant: tenant, Features: features}
}

func (s *story) revoke() {
	defer s.muteWarnings()()
	_, before := s.box.Calls()
	s.box.Revoke()
	s.result("token revoked", "")
	answer := query(s.ctx, s.calls)
	if _, now := s.box.Calls(); now > before {
		s.result("the service's answer to usher", "401")
	}
	s.result("usher's answer to the program", answer)
}

// forge sends a webhook without the secret.
func (s *story) forge() {
	forger := sandbox.NewSender(0, s.box.Sender.URLs[0])
	forger.Client, forger.Attempts = s.box.Sender.Client, 1
	e := forger.Send(s.ctx, acme(1000, "sso").Webhook())
	s.result("webhook  acme: sso and 1000 users", s.outcome("", e))
}

func (s *story) outage() {
	defer s.muteWarnings()()
	s.box.Receiver.Fail(sandbox.Fault{Status: http.StatusServiceUnavailable})
	s.result("receiver down", "")
	var sent []string
	for _, users := range []int{25, 50, 100} {
		sent = append(sent, s.webhook(fmt.Sprintf("acme: %d users", users), acme(users)))
	}
	s.box.Receiver.Fail(sandbox.Fault{})
	s.result("receiver back", "")
	for len(s.pending) > 0 && pause(s.ctx, 20*time.Millisecond) {
		s.reportPending(func(string, string) {})
	}
	var came []string
	for _, d := range s.box.Receiver.Deliveries() {
		if d.Status == http.StatusOK && slices.Contains(sent, d.WebhookID) {
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
	defer s.muteWarnings()()
	s.box.Receiver.Fail(sandbox.Fault{Status: http.StatusUnprocessableEntity})
	id := s.webhook("acme: 200 users", acme(200))
	s.box.Receiver.Fail(sandbox.Fault{})
	s.result("receiver fixed", "")
	number := s.webhooks()[id].ID
	call(s.ctx, s.admin, http.MethodPost, "/api/webhooks/"+number+"/redeliver", "", nil)
	s.result("usher inbox redeliver "+number, s.waitForResult(id))
}

// missed shows a reconcile with the service's log. usher reads the log by itself, too, but nobody waits that long here.
func (s *story) missed() {
	reaches := s.box.Sender.Client.Transport
	s.box.Sender.Client.Transport = unreachable{}
	s.webhook("globex: 10 users", sold("globex", 10))
	s.webhook("globex: 20 users, sso", sold("globex", 20, "sso"))
	s.box.Sender.Client.Transport = reaches
	s.result("usher reachable again", "")
	s.checkOf("globex")
	defer s.muteWarnings()()
	before := len(s.box.Receiver.Deliveries())
	s.result("usher reconcile --apply", fmt.Sprintf("%d taken in", s.reconcile()))
	for range 200 {
		if len(s.box.Receiver.Deliveries()) > before || !pause(s.ctx, 10*time.Millisecond) {
			break
		}
	}
	for _, d := range s.box.Receiver.Deliveries()[before:] {
		s.result(d.Summary, "delivered")
	}
	s.checkOf("globex")
}

// unreachable is the network without usher.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// reconcile takes in what the service's log has and usher does not, and returns how many tenants that were.
func (s *story) reconcile() (applied int) {
	var line admin.RunLine
	ask := func(asked admin.RunCall) {
		body, _ := json.Marshal(asked) // strings
		resp, err := s.admin.Call(s.ctx, http.MethodPost, "/api/reconcile", bytes.NewReader(body))
		if err != nil {
			return
		}
		defer resp.Body.Close()
		for d := json.NewDecoder(resp.Body); d.Decode(&line) == nil; { // the last one has the result
		}
	}
	if ask(admin.RunCall{Log: true, About: "--apply"}); line.Run != nil {
		ask(admin.RunCall{Log: true, Pass: inbox.Pass{Run: line.Run.ID, Mode: lane.ToApply}})
	}
	if line.Run == nil {
		return 0
	}
	return line.Run.Found[lane.Applied]
}

// webhook sends a snapshot, prints the result, and returns the webhook's id.
func (s *story) webhook(what string, state sandbox.State) (id string) {
	e := s.box.Sender.Send(s.ctx, state.Webhook())
	s.result("webhook  "+what, s.outcome(what, e))
	return webhookID(e)
}

// outcome returns what usher answered to a webhook and, if usher stored it, whether it was delivered.
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
	return answer + ", " + s.waitForResult(webhookID(e))
}

// waitForResult waits a moment until a webhook was delivered, parked or tried, and returns its state.
func (s *story) waitForResult(id string) string {
	timeout := 2 * time.Second
	if len(s.pending) > 1 {
		timeout = 300 * time.Millisecond // it may wait behind another webhook
	}
	var w webhook
	for until := time.Now().Add(timeout); time.Now().Before(until); {
		if w = s.webhooks()[id]; !w.waiting() || w.Tries > 0 || !pause(s.ctx, 10*time.Millisecond) {
			break
		}
	}
	if i := slices.IndexFunc(s.pending, func(p pending) bool { return p.id == id }); i >= 0 {
		if s.pending[i].tries = w.Tries; !w.waiting() {
			s.pending = slices.Delete(s.pending, i, i+1)
		}
	}
	if w.waiting() && !s.ownReceiver() {
		return fmt.Sprintf("%d waiting", len(s.pending))
	}
	return s.stateText(w)
}

// stateText returns the state of a webhook, with the receiver's status if it matters to the user.
func (s *story) stateText(w webhook) string {
	state := cmp.Or(w.State, "waiting")
	if s.ownReceiver() && w.Tries > 0 || state == "parked" {
		state += " (" + w.status() + ")"
	}
	return state
}

// reportPending reports the pending webhooks that have been delivered or parked and, for the user's own
// receiver, each try of the oldest one that still waits.
func (s *story) reportPending(report func(what, result string)) {
	if len(s.pending) == 0 {
		return
	}
	now := s.webhooks()
	if s.ctx.Err() != nil {
		return
	}
	s.pending = slices.DeleteFunc(s.pending, func(p pending) bool {
		w := now[p.id]
		if !w.waiting() {
			report(p.what, fmt.Sprintf("%s at try %d", s.stateText(w), w.Tries))
		}
		return !w.waiting()
	})
	if len(s.pending) > 0 && s.ownReceiver() {
		oldest := &s.pending[0]
		if w := now[oldest.id]; w.Tries > oldest.tries {
			report(oldest.what, fmt.Sprintf("try %d: %s, waiting", w.Tries, w.status()))
			oldest.tries = w.Tries
		}
	}
}

// result prints a line of the story, then waits a moment.
func (s *story) result(what, result string) {
	if s.ctx.Err() == nil {
		s.say.result(what, result)
	}
	pause(s.ctx, beat/4)
}

// muteWarnings keeps warnings about what the demo does itself out of the log, until restore is
// called. With the user's own receiver they stay out: the story shows what that receiver does.
func (s *story) muteWarnings() (restore func()) {
	if s.level == nil {
		return func() {}
	}
	s.level.Set(slog.LevelError)
	return func() {
		if !s.ownReceiver() {
			s.level.Set(slog.LevelWarn)
		}
	}
}

// sendUntilEnd sends a webhook every few seconds until the demo ends: mostly a change, sometimes a copy of the
// last one. Sometimes the built-in receiver is down for a while.
func (s *story) sendUntilEnd() {
	defer s.muteWarnings()() // the receiver fails, and a tenant's code exists on two platforms
	for n := 0; s.ctx.Err() == nil; n++ {
		switch {
		case s.ownReceiver():
		case n%12 == 6:
			s.box.Receiver.Fail(sandbox.Fault{Status: http.StatusServiceUnavailable})
			s.say.event("the receiver is down", "")
		case n%12 == 8:
			s.box.Receiver.Fail(sandbox.Fault{})
			s.say.event("the receiver is back", "")
		}
		entry := s.box.Sender.Next(s.ctx)
		outcome := s.outcome(entry.Summary, entry)
		if s.ctx.Err() != nil {
			return
		}
		s.say.event(entry.Summary, outcome)
		for due := time.Now().Add(webhookEvery); time.Now().Before(due) && pause(s.ctx, 100*time.Millisecond); {
			s.reportPending(s.say.event)
		}
	}
}

// newClient returns a client for a port of usher or of the sandbox, which sends JSON.
func newClient(address, tokens string) *serve.Client {
	c := serve.NewClient(address, tokens)
	c.Header.Set("Content-Type", "application/json")
	return c
}

// call sends a request, decodes a JSON answer into result, and returns the status, or 0 without an answer.
func call(ctx context.Context, port *serve.Client, method, path, body string, result any) int {
	resp, err := port.Call(ctx, method, path, strings.NewReader(body))
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(result)
	return resp.StatusCode
}

// query calls the billing service and returns its answer in words.
func query(ctx context.Context, port *serve.Client) string {
	var answer struct {
		Data struct {
			Accounts struct{ Nodes []struct{ Name string } }
		}
	}
	status := call(ctx, port, http.MethodPost, "/graphql", `{"query":"{ accounts(first: 3) { nodes { id name } } }"}`, &answer)
	switch status {
	case 0:
		return "no answer"
	case http.StatusOK:
		return fmt.Sprintf("%d, %d accounts", status, len(answer.Data.Accounts.Nodes))
	}
	return fmt.Sprintf("%d %s", status, http.StatusText(status))
}

// check asks whether acme may use sso, as a customer's program does.
func (s *story) check() { s.checkOf("acme") }

func (s *story) checkOf(tenant string) {
	status := call(s.ctx, s.entitlements, http.MethodGet, "/v1/check?feature=sso&tenant="+tenant, "", nil)
	word := map[int]string{
		0: "no answer", http.StatusNoContent: "204 yes", http.StatusForbidden: "403 no", http.StatusNotFound: "404 unknown tenant",
	}[status]
	s.result("check    may "+tenant+" use sso?", cmp.Or(word, fmt.Sprint(status)))
}

// webhook is a webhook in the admin API.
type webhook struct {
	ID, Webhook, State, Answer string
	Tries                      int
}

// waiting reports whether the webhook still waits, or usher does not know it yet.
func (w webhook) waiting() bool { return w.State == "waiting" || w.State == "" }

// status returns the receiver's last status, which is the beginning of its answer.
func (w webhook) status() string {
	if len(w.Answer) >= 3 && strings.Trim(w.Answer[:3], "0123456789") == "" {
		return w.Answer[:3]
	}
	return "no answer"
}

// webhooks returns the webhooks in the inbox, as 'usher inbox ls' does, by webhook-id.
func (s *story) webhooks() map[string]webhook {
	byID := make(map[string]webhook)
	resp, err := s.admin.Call(s.ctx, http.MethodGet, "/api/webhooks?limit=500", nil)
	if err != nil {
		return byID
	}
	defer resp.Body.Close()
	for d := json.NewDecoder(resp.Body); ; { // a line for each, and a last one
		var w webhook
		if d.Decode(&w) != nil {
			return byID
		}
		byID[w.Webhook] = w
	}
}

// webhookID returns the webhook-id from usher's answer to the sender.
func webhookID(e sandbox.SentWebhook) string {
	var a struct{ Webhook string }
	_ = json.Unmarshal([]byte(e.Answer), &a)
	return a.Webhook
}

// legacyProgram stands for a program without OAuth. It makes a few calls a second, so that the admin page has
// something to show.
func legacyProgram(ctx context.Context, calls *serve.Client) {
	for pause(ctx, 300*time.Millisecond) {
		query(ctx, calls)
	}
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// narrator prints the story, in lines of up to 80 columns.
type narrator struct {
	out    io.Writer
	colour bool
}

const (
	storyColumns = 46 // the column of a result in the story
	eventColumns = 49 // the column of a result in a line that begins with the time
)

func (n *narrator) paint(code, s string) string {
	if !n.colour || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (n *narrator) bold(s string) string { return n.paint("1", s) }

func (n *narrator) welcome(at serve.Addresses, path, receiver string, replaced []string) {
	does := "runs on this machine alone; nothing leaves it"
	if receiver != "" {
		does = "sends its webhooks to your receiver"
	}
	fmt.Fprintf(n.out, "%s %s. Ctrl-C ends it.\n\n", n.bold("usher demo"), does)
	fmt.Fprintf(n.out, "  calls         %s\n", n.bold(at.Calls+"/graphql"))
	fmt.Fprintf(n.out, "  webhooks      %s\n", n.bold(at.Webhooks+path))
	fmt.Fprintf(n.out, "  entitlements  %s\n", n.bold(at.Entitlements))
	fmt.Fprintf(n.out, "  admin page    %s\n", n.bold(at.Admin))
	if u, err := url.Parse(receiver); err == nil && receiver != "" {
		// It is shown without the path, which may be a secret.
		fmt.Fprintf(n.out, "  your receiver %s\n", n.bold(u.Scheme+"://"+u.Host))
	}
	for _, addr := range replaced {
		fmt.Fprintf(n.out, "  (%s is taken, so a free port is used instead)\n", addr)
	}
	fmt.Fprintf(n.out, "\nCall it yourself, without a token:\n\n  curl -s %s \\\n", text.Quote(at.Calls+"/graphql"))
	fmt.Fprintf(n.out, "    -H Content-Type:application/json \\\n    -d '{\"query\":\"{accounts(first:3){nodes{name}}}\"}'\n")
}

// hints prints commands to try, exactly as the user has to type them.
func (n *narrator) hints(at serve.Addresses, box, program string) {
	ask := program
	if addr := strings.TrimPrefix(at.Admin, "http://"); addr != settings.Default("USHER_ADMIN_LISTEN") {
		ask = "USHER_ADMIN_LISTEN=" + text.Quote(addr) + " " + program
	}
	fmt.Fprintf(n.out, "\nTry these in another terminal:\n\n")
	fmt.Fprintf(n.out, "  curl -s %s\n", text.Quote(at.Entitlements+"/v1/entitlements/acme/users"))
	fmt.Fprintf(n.out, "  %s entitlements acme\n  %s inbox ls --limit 5\n", ask, ask)
	fmt.Fprintf(n.out, "  %s sandbox send acme users=300 --at %s\n", program, text.Quote(box))
	fmt.Fprintf(n.out, "\nThe admin page shows each webhook and what it changed:  %s\n", n.bold(at.Admin))
	fmt.Fprintf(n.out, "\nFrom now on a webhook comes every few seconds.\n\n")
}

func (n *narrator) step(number int, title string) {
	first, rest, more := strings.Cut(title, "\n")
	fmt.Fprintf(n.out, "\n%s\n", n.bold(fmt.Sprintf("%d. %s", number, first)))
	if more {
		fmt.Fprintf(n.out, "%s\n", n.bold("   "+rest))
	}
}

// result prints an event of the story and its result.
func (n *narrator) result(what, result string) {
	n.columns("   "+what, storyColumns, result)
}

// event prints an event and its result, with the time.
func (n *narrator) event(what, result string) {
	n.columns(time.Now().Format(time.TimeOnly)+"  "+what, eventColumns, result)
}

func (n *narrator) columns(left string, width int, right string) {
	if right == "" {
		fmt.Fprintln(n.out, left)
		return
	}
	fmt.Fprintf(n.out, "%-*s%s\n", width, text.Shorten(left, width-1), n.paint(colourOf(right), right))
}

// colourOf returns red for an invalid webhook, yellow for a webhook that waits or was dropped, else green.
func colourOf(result string) string {
	begins := func(with string) bool { return strings.HasPrefix(result, with) }
	has := func(word string) bool { return strings.Contains(result, word) }
	switch {
	case begins("4"), begins("5"), begins("no"), has("parked"):
		return "31"
	case has("dropped"), has("waiting") && !has("0 waiting"):
		return "33"
	}
	return "32"
}
