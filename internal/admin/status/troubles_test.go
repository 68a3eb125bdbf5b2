package status

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"usher/internal/admin/metrics"
	"usher/internal/inbox"
	"usher/internal/inbox/engine"
	"usher/internal/lane"
	"usher/internal/receiver"
	"usher/internal/text"
	"usher/tokens"
)

var mainReceiver = receiver.NewSet(&receiver.Receiver{Name: "main", URL: &url.URL{Scheme: "http", Host: "receiver:3000"}})

// lastHour returns an hour with these counts in its last minute.
func lastHour(counts ...int) []metrics.Minute {
	minutes := make([]metrics.Minute, metrics.Minutes)
	copy(minutes[metrics.Minutes-1].Counts[:], counts)
	return minutes
}

// wrong returns the troubles. With an inbox, the receiver main holds up two tenants.
func judged(t *testing.T, port Port, gate *Gate, box *inbox.Stats, health inbox.Health, shared bool) []Trouble {
	t.Helper()
	s := &Status{Ports: []Port{port}, Gate: gate, Health: &Health{Parts: []Part{{Name: "outbound", On: port.Source.Had}, {Name: "gate", On: gate != nil}}}}
	if box != nil {
		held := func(platform, tenant, receiver string, down bool) inbox.HeldUp {
			return inbox.HeldUp{Down: down, Webhook: &lane.Webhook{Platform: platform, Tenant: tenant, Received: night, Status: lane.Status{Record: lane.Record{Receiver: receiver, Tried: []lane.Try{{Status: 500}}}}}}
		}
		s.Inbox = NewInbox(*box, []inbox.HeldUp{
			held("docs", "harbour-ltd", "main", false), held("crm", "a/b", "main", false), held("crm", "missed", "main", true), held("crm", "other", "other", false),
		}, mainReceiver, health.Err)
		s.Health.Inbox = &InboxHealth{Health: health, Opened: true, Shared: shared}
	}
	if box != nil {
		s.Missed = box.Missed
	}
	s.Judge(time.Now())
	checkLines(t, s)
	return s.Troubles
}

var night = time.Date(2026, 11, 17, 2, 10, 0, 0, time.UTC)

func TestTroubles(t *testing.T) {
	port := func(s tokens.State) Port {
		return Port{
			Name: "main", Source: s, Advice: "check USHER_X", Calls: lastHour(100), Tokens: lastHour(1), LastCalls: metrics.LastCalls{LastFailure: metrics.Failure{Reason: "UPSTREAM_TIMEOUT"}},
		}
	}
	held := new(tokens.Token)
	fine := tokens.State{Had: true, Token: held}
	rejected := func(code string) error { return &tokens.RejectedError{Code: code} }
	gate := func(last string, decisions ...int) *Gate {
		tries := metrics.RecentTries{Last: last, LastFailed: last, Failed: 1, Since: night}
		switch last {
		case "ok":
			tries = metrics.RecentTries{Last: last, OK: 1}
		case "500":
			tries.Last, tries.LastFailed, tries.LastStatus = "status", "status", 500
		}
		return &Gate{Set: mainReceiver, Tries: map[string]metrics.RecentTries{"main": tries}, Decisions: lastHour(decisions...)}
	}
	certified := func(left time.Duration) *Gate {
		g := gate("ok")
		g.CertificateEnds = time.Now().Add(left)
		return g
	}
	failedChecks := func(g *Gate, n int, ago time.Duration) *Gate {
		g.FailedChecks = metrics.FailedChecks{Count: n, Since: night, Last: time.Now().Add(-ago)}
		return g
	}
	asked := func(n int, ago time.Duration) *Gate {
		g := gate("ok", 0, 9, 0, 0, n, 0, n)
		g.Questions = metrics.Questions{Count: n, Since: night, Last: time.Now().Add(-ago), Why: "the receiver could not be reached"}
		return g
	}
	box := func(f inbox.Figures, edit func(*inbox.Figures)) *inbox.Stats {
		r := f
		if edit != nil {
			edit(&r)
		}
		return &inbox.Stats{Figures: f, Receivers: map[string]inbox.Figures{"main": r}}
	}
	down := func(r *inbox.Figures) { r.NotAccepted, r.FailsForEverybody, r.FailingSince = 3, true, night }
	refuses := func(n int, none bool) func(*inbox.Figures) {
		return func(r *inbox.Figures) {
			if r.NotAccepted, r.FailsForEverybody, r.LastAccepted = n, none, night.Add(time.Minute); none {
				r.FailingSince, r.LastAccepted = night, time.Time{}
			}
		}
	}
	with := func(p Port, edit func(*Port)) Port {
		edit(&p)
		return p
	}
	waits := inbox.Figures{Pending: 5, Oldest: 2 * time.Minute}
	since := " since 2026-11-17T02:10:00Z"
	fails := func(err error) *inbox.Health { return &inbox.Health{Err: err, Since: night} }
	full := &engine.FullError{Of: "/var/lib/usher/inbox.db", Since: night, Free: 1 << 19, Size: 100 << 20}
	const noticed = "The receiver http://receiver:3000 "
	for _, tc := range []struct {
		name   string
		port   Port
		gate   *Gate
		box    *inbox.Stats
		health *inbox.Health // nil: the inbox works
		shared bool
		want   []string // a part of each trouble: severity, what and since when, what it means and what to do
	}{
		{"well", port(fine), gate("ok"), box(inbox.Figures{}, nil), nil, false, nil},
		{"gate off", port(fine), nil, nil, nil, false, nil},
		{"secret rejected", port(tokens.State{Err: rejected("invalid_client"), Since: night}), nil, nil, nil, false,
			[]string{"critical", "Port main: token request rejected: invalid_client: every call fails" + since, "every call on this port is answered with an error. Check USHER_X."}},
		{"rejected with a token at hand", port(tokens.State{Had: true, Token: held, Err: rejected("invalid_client")}), nil, nil, nil, false,
			[]string{"warning", "invalid_client", "Calls go on as long as the current token is valid"}},
		{"unreachable", port(tokens.State{Had: true, Err: errors.New("connection refused")}), nil, nil, nil, false,
			[]string{"critical", "Port main: connection refused", "Check USHER_X."}},
		{"revoked", with(port(fine), func(p *Port) { p.Tokens = lastHour(3, 0, 0, 2) }), nil, nil, nil, false,
			[]string{"warning", "2 tokens were rejected long before they expired", "API client of its own"}},
		{"revoked once", with(port(fine), func(p *Port) { p.Tokens = lastHour(3, 0, 0, 1) }), nil, nil, nil, false, nil},
		{"calls fail", with(port(fine), func(p *Port) { p.Calls = lastHour(5, 5, 0, 5, 5, 5) }), nil, nil, nil, false,
			[]string{"critical", "usher failed 5 of 10 calls in the last 5 minutes, the last one with UPSTREAM_TIMEOUT", "Check the billing service and the way to it."}},
		{"calls fail with a token that is no longer accepted", with(port(tokens.State{Had: true, Token: held, Err: rejected("invalid_client"), Since: night}), func(p *Port) {
			p.Calls, p.LastFailure = lastHour(5, 5, 0, 5, 5, 5), metrics.Failure{Reason: "TOKEN_REJECTED", At: night}
		}), nil, nil, nil, false,
			[]string{"critical", "token request rejected: invalid_client, and the billing service does not accept the current token any more: every call fails" + since, "every call on this port is answered with an error. Check USHER_X."}},
		{"calls failed before there was a token", with(port(tokens.State{Had: true, Token: held, Err: rejected("invalid_client"), Since: night}), func(p *Port) { p.LastFailure = metrics.Failure{Reason: "TOKEN_REJECTED", At: time.Time{}} }), nil, nil, nil, false,
			[]string{"warning", "invalid_client", "Calls go on as long as the current token is valid"}},
		{"the service answers with errors", with(port(fine), func(p *Port) { p.Calls = lastHour(5, 5, 0, 5, 0, 0) }), nil, nil, nil, false,
			[]string{"warning", "the billing service answered 5 of 10 calls with a 5xx", "usher only passes them on"}},
		{"callers make mistakes", with(port(fine), func(p *Port) { p.Calls = lastHour(5, 5) }), nil, nil, nil, false, nil},
		{"some calls fail", with(port(fine), func(p *Port) { p.Calls = lastHour(500, 5, 0, 5, 5, 5) }), nil, nil, nil, false, nil},
		{"receiver away", port(fine), gate("error"), box(inbox.Figures{Pending: 1204, Oldest: 130 * time.Second}, down), nil, false,
			[]string{"critical", noticed + "can't be reached: nothing is delivered, 1,204 webhooks wait, the oldest for 2m 10s; the last try: 500 Internal Server Error" + since, "Fix the receiver"}},
		{"receiver away, as others have seen", port(fine), gate("ok"), box(waits, down), nil, false,
			[]string{"critical", noticed + "takes nothing: nothing is delivered, 5 webhooks wait", ""}},
		{"receiver away for a moment", port(fine), gate("error"), box(inbox.Figures{Pending: 1, Oldest: time.Second}, nil), nil, false, nil},
		{"receiver slow", port(fine), gate("ok"), box(waits, nil), nil, false, []string{"critical", "slow", ""}},
		{"receiver late", port(fine), gate("timeout"), box(waits, down), nil, false, []string{"critical", "does not answer in time: nothing is delivered", ""}},
		{"some tenants are not accepted, and the last try was fine", port(fine), gate("ok"), box(waits, refuses(2, false)), nil, false,
			[]string{"warning", noticed + "takes webhooks, but not those of docs/harbour-ltd and crm/a%2Fb; the last answer: 500 Internal Server Error" + since, "Nothing is lost. Find out why"}},
		{"some tenants are not accepted, and the last try failed", port(fine), gate("500"), box(waits, refuses(2, false)), nil, false,
			[]string{"warning", noticed + "takes webhooks, but not those of docs/harbour-ltd and crm/a%2Fb", "'usher inbox ls'"}},
		{"two tenants are not accepted, and nobody knows of others", port(fine), gate("500"), box(waits, func(r *inbox.Figures) { r.NotAccepted = 2 }), nil, false,
			[]string{"warning", noticed + "does not take the webhooks of docs/harbour-ltd and crm/a%2Fb, and has taken no others since; the last try: 500", "Nothing is lost."}},
		{"some tenants wait for as long as the alert waits", port(fine), gate("ok"), box(inbox.Figures{Pending: 5, Oldest: 11 * time.Minute}, refuses(2, false)), nil, false,
			[]string{"critical", noticed + "takes webhooks, but not those of docs/harbour-ltd", "Nothing is lost. Find out why"}},
		{"all tenants are not accepted", port(fine), gate("500"), box(waits, refuses(3, true)), nil, false,
			[]string{"critical", noticed + "answers 500 to everything: nothing is delivered, 5 webhooks wait, the oldest for 2m; the last try: 500 Internal Server Error" + since, "Fix the receiver"}},
		{"parked", port(fine), gate("500"), box(inbox.Figures{Parked: 1}, nil), nil, false, []string{"critical", "1 webhook is parked", "redeliver them"}},
		{"inbox broken", port(fine), gate("ok"), box(inbox.Figures{}, nil), fails(&engine.BrokenError{Err: errors.New("it could not be written")}), false,
			[]string{"critical", "takes no webhooks: it could not be written" + since, "then restart usher"}},
		{"file gone", port(fine), gate("ok"), box(inbox.Figures{}, nil), fails(&engine.BrokenError{Err: errors.New("the file is gone"), Gone: true}), false,
			[]string{"critical", "takes no webhooks: the file is gone" + since, "what is in it is lost when usher stops. Do not stop or restart usher."}},
		{"disk full", port(fine), gate("ok"), box(inbox.Figures{}, nil), fails(full), false,
			[]string{"critical", "takes no webhooks: the disk of /var/lib/usher/inbox.db is too full: only 0.5 of 100 MiB are free" + since, "Free some space"}},
		{"database full", port(fine), gate("ok"), box(inbox.Figures{}, nil), fails(&engine.FullError{Of: "the inbox's database"}), true,
			[]string{"critical", "the disk of the inbox's database is full", "Free some space"}},
		{"database away", port(fine), gate("ok"), box(inbox.Figures{}, nil), fails(errors.New("connection refused")), true,
			[]string{"critical", "takes no webhooks: connection refused" + since, "Nothing that was answered 200 is lost. Deliveries may wait, too, and questions about tenants that usher does not hold in memory may be answered 503. Check the database"}},
		{"table locked", port(fine), gate("ok"), box(inbox.Figures{}, nil), fails(engine.ErrLocked), true,
			[]string{"critical", "another client has locked rows or a table", "pg_locks"}},
		{"database read-only", port(fine), gate("ok"), box(inbox.Figures{}, nil), fails(fmt.Errorf("no: %w", engine.ErrReadOnly)), true,
			[]string{"critical", "it is read-only", "Make the database writable"}},
		{"inbox nearly full", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"main": {Used: 1000 << 20}}, Limit: 1 << 30}, nil, false, []string{"warning", "nearly full: 1000 MiB of 1.0 GiB", "USHER_WEBHOOK_INBOX_MAX_BYTES"}},
		{"inbox full", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"main": {Used: 8 << 10}}, Limit: 10 << 10, NoRoom: map[string]int64{"main": 3 << 10}}, nil, false,
			[]string{"warning", "The inbox has no room for a webhook of 3.0 KiB: 8.0 KiB of 10 KiB are used", "discard what they will never take, or raise USHER_WEBHOOK_INBOX_MAX_BYTES"}},
		{"no room for one receiver", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"main": {}, "beta": {Used: 9 << 10}}, Limit: 10 << 10, NoRoom: map[string]int64{"beta": 3 << 10}}, nil, false,
			[]string{"warning", "The inbox has no room for a webhook of 3.0 KiB for the receiver beta: 9.0 KiB of 10 KiB are used", "discard what they will never take"}},
		{"inbox too small", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"main": {}}, Limit: 10 << 10, NoRoom: map[string]int64{"main": 11 << 10}}, nil, false,
			[]string{"warning", "A webhook of 11 KiB is larger than the whole inbox, which has room for 10 KiB", "USHER_WEBHOOK_INBOX_MAX_BYTES"}},
		{"nobody's", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"": {Pending: 2}}}, nil, false,
			[]string{"critical", "2 webhooks wait, but no receiver takes their platform", "USHER_WEBHOOK_RECEIVERS_n_PLATFORMS"}},
		{"nobody's, one", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"": {Pending: 1}}}, nil, false,
			[]string{"critical", "1 webhook waits, but no receiver takes its platform any more", "or set USHER_WEBHOOK_FORWARD_URL"}},
		{"paused", port(fine), gate("ok"), &inbox.Stats{Paused: []inbox.Pause{{Since: night}}}, nil, false, []string{"warning", "Paused: all deliveries" + since, "resume"}},
		{"passed through and failed", port(fine), gate("500", 0, 0, 0, 0, 3), nil, nil, false, []string{"critical", "answers 500 to everything: 3 webhooks failed" + " in the last 5 minutes" + since, "resend"}},
		{"answered 503, and they have come again", port(fine), gate("ok", 0, 9, 0, 0, 3), box(inbox.Figures{}, nil), nil, false, nil},
		{"a question fails", port(fine), asked(1, 59*time.Minute), box(inbox.Figures{}, nil), nil, false,
			[]string{"critical", "1 question of the billing service was not answered: the receiver could not be reached" + since, "Somebody could not buy"}},
		{"questions failed an hour ago", port(fine), asked(2, time.Hour), box(inbox.Figures{}, nil), nil, false, nil},
		{"a clock that is ahead", port(fine), gate("ok"), &inbox.Stats{ClockAhead: 10*time.Minute + 400*time.Millisecond}, nil, true,
			[]string{"warning", "The clock of this machine is 10m ahead of the database's", "Set the clock that is wrong, by NTP"}},
		{"a clock that is behind", port(fine), gate("ok"), &inbox.Stats{ClockAhead: -5001 * time.Millisecond}, nil, true,
			[]string{"warning", "The clock of this machine is 5s behind the database's", "reject what this replica delivers"}},
		{"clocks that differ a little", port(fine), gate("ok"), &inbox.Stats{ClockAhead: 5 * time.Second}, nil, true, nil},
		{"two failed the check", port(fine), failedChecks(gate("ok"), 2, 0), nil, nil, false, nil},
		{"three failed the check", port(fine), failedChecks(gate("ok"), 3, 0), box(inbox.Figures{}, nil), nil, false, []string{"warning", "Every webhook since 02:10:00 UTC failed the check of its sender: 3" + since, "the same secret"}},
		{"they failed the check half an hour ago", port(fine), failedChecks(gate("ok"), 3, 30*time.Minute), nil, nil, false, nil},
		{"certificate that ends soon", port(fine), certified(3*24*time.Hour + time.Minute), nil, nil, false, []string{"warning", "The TLS certificate of the webhook gate expires in 3d", "USHER_WEBHOOK_TLS_CERT_FILE"}},
		{"certificate that has ended", port(fine), certified(-time.Minute), nil, nil, false, []string{"critical", "The TLS certificate of the webhook gate has expired", "without a restart"}},
		{"certificate that lasts", port(fine), certified(30 * 24 * time.Hour), nil, nil, false, nil},
		{"missed", port(fine), gate("ok", 0, 9, 0, 0, 3), &inbox.Stats{Missed: inbox.Missed{From: night, To: night.Add(15 * time.Minute), Webhooks: 204}}, nil, false,
			[]string{"critical", "usher answered 204 webhooks with a 5xx from 2026-11-17 02:10:00 to 02:25:00 UTC" + since, "'usher help reconcile'"}},
		{"missed without an inbox", port(fine), gate("ok", 0, 9, 0, 0, 3), nil, nil, false, []string{"critical", "usher answered 3 webhooks with a 5xx in the last 5 minutes", "keep what they no longer pay for."}},
		{"missed without an inbox, and a certificate that ends", port(fine), func() *Gate {
			g := gate("ok", 0, 9, 0, 0, 3)
			g.CertificateEnds = time.Now().Add(49 * time.Hour)
			return g
		}(), nil, nil, false,
			[]string{"critical", "usher answered 3 webhooks with a 5xx", "", "warning", "expires in 2", ""}},
		{"an outage", port(fine), gate("ok"), &inbox.Stats{Missed: inbox.Missed{From: night, To: night.Add(2 * time.Minute)}}, nil, false,
			[]string{"critical", "No gate was ready to take webhooks from 2026-11-17 02:10:00 to 02:12:00 UTC" + since, "Reconcile with the billing service"}},
		{"the worst first", port(tokens.State{Err: rejected("invalid_client")}), gate("ok"), &inbox.Stats{Paused: []inbox.Pause{{}}}, nil, false,
			[]string{"critical", "invalid_client", "", "warning", "Paused", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.health == nil {
				tc.health = new(inbox.Health)
			}
			got := judged(t, tc.port, tc.gate, tc.box, *tc.health, tc.shared)
			if len(got)*3 != len(tc.want) {
				t.Fatalf("%+v", got)
			}
			for i, trouble := range got {
				want := tc.want[3*i:]
				what, said := trouble.What, trouble.Means+" "+trouble.Do
				if !trouble.Since.IsZero() {
					what += " since " + trouble.Since.Format(time.RFC3339)
				}
				if trouble.Severity != want[0] || !strings.Contains(what, want[1]) || !strings.Contains(said, want[2]) || trouble.Means == "" || trouble.Do == "" {
					t.Errorf("%s: %s\n%s\nwant %q", trouble.Severity, what, said, want[:3])
				}
			}
		})
	}
	shared := port(tokens.State{Err: rejected("invalid_client")})
	shared.Shares = "main"
	if got := judged(t, shared, nil, nil, inbox.Health{}, false); len(got) != 0 {
		t.Errorf("told twice: %+v", got)
	}
}

// The line of a receiver comes from its trouble. Without one it says that it takes webhooks only
// if it took the last one.
func TestReceiverStates(t *testing.T) {
	waits := func(f inbox.Figures) inbox.Figures {
		f.Pending, f.Oldest = 2, time.Minute
		return f
	}
	for name, tc := range map[string]struct {
		figures inbox.Figures
		tries   metrics.RecentTries
		want    string
		tone    string
	}{
		"some fail, others do not":     {waits(inbox.Figures{NotAccepted: 2, LastAccepted: night.Add(time.Minute)}), metrics.RecentTries{Last: "status"}, "takes webhooks, but not those of 2 tenants", warn},
		"some fail, none passed since": {waits(inbox.Figures{NotAccepted: 2, LastAccepted: night.Add(-time.Minute)}), metrics.RecentTries{Last: "error"}, "fails for 2 tenants, and has taken no others since", warn},
		"one has just failed":          {inbox.Figures{NotAccepted: 1, Pending: 1, Oldest: 2 * time.Second}, metrics.RecentTries{Last: "status"}, "did not take the last webhook", ""},
		"others have delivered it":     {inbox.Figures{LastAccepted: night.Add(time.Minute)}, metrics.RecentTries{Last: "status", Since: night}, "takes webhooks", good},
		"failed since, and discarded":  {inbox.Figures{LastAccepted: night.Add(-time.Minute)}, metrics.RecentTries{Last: "status", Since: night}, "did not take the last webhook", ""},
		"parked":                       {inbox.Figures{Parked: 2}, metrics.RecentTries{Last: "status"}, "has 2 parked webhooks", bad},
		"down":                         {waits(inbox.Figures{NotAccepted: 3, FailsForEverybody: true}), metrics.RecentTries{LastFailed: "status", LastStatus: 500, Last: "status"}, "answers 500 to everything", bad},
		"silent":                       {inbox.Figures{Pending: 1, Oldest: time.Second}, metrics.RecentTries{Last: "ok", Unanswered: time.Now().Add(-4 * time.Second)}, "has not answered for 4s", warn},
		"silent for a moment":          {inbox.Figures{Pending: 1, Oldest: time.Second}, metrics.RecentTries{Last: "ok", Unanswered: time.Now().Add(-2 * time.Second)}, "takes webhooks", good},
		"never tried":                  {inbox.Figures{}, metrics.RecentTries{}, "has not been tried yet", ""},
	} {
		held := []inbox.HeldUp{{Webhook: &lane.Webhook{Tenant: "acme", Received: night, Status: lane.Status{Record: lane.Record{Receiver: "main", Tried: []lane.Try{{Status: 500}}}}}}}
		s := &Status{Gate: &Gate{Set: mainReceiver, Tries: map[string]metrics.RecentTries{"main": tc.tries}}, Health: new(Health),
			Inbox: NewInbox(inbox.Stats{Figures: tc.figures, Receivers: map[string]inbox.Figures{"main": tc.figures}}, held, mainReceiver, nil)}
		s.Judge(time.Now())
		if r := s.Gate.Receivers[0]; r.State != tc.want || r.Tone != tc.tone {
			t.Errorf("%s: %q %s, want %q", name, r.State, r.Tone, tc.want)
		}
	}
}

// checkLines checks that no line is green beside a red box, and that none is red without one.
func checkLines(t *testing.T, s *Status) {
	t.Helper()
	troubled := make(map[Subject]bool)
	parts := make(map[string]bool)
	for i := range s.Troubles {
		if len(s.Troubles[i].about) == 0 || s.Troubles[i].Kind == "" {
			t.Errorf("about nothing, or without a kind: %+v", s.Troubles[i])
		}
		for _, about := range s.Troubles[i].about {
			about.says = ""
			troubled[about], parts[about.Part] = true, true
		}
	}
	check := func(line string, is, tone string, troubled bool) {
		if quiet := tone == good || tone == ""; quiet == troubled {
			t.Errorf("%s: %q is %q; troubled: %v", line, is, tone, troubled)
		}
	}
	for i := range s.Ports {
		check("port", s.Ports[i].State, s.Ports[i].Tone, troubled[Subject{Part: "outbound", Name: s.Ports[i].Name}])
	}
	if s.Gate != nil {
		for _, r := range s.Gate.Receivers {
			check("receiver", r.State, r.Tone, troubled[Subject{Part: "gate", Name: r.Name}])
		}
	}
	for _, p := range s.Parts {
		if p.On {
			check(p.Name, p.State, p.Tone, parts[p.Name])
		}
	}
}

// Whose features cannot be read.
func TestEntitlementTroubles(t *testing.T) {
	s := &Status{Health: new(Health), Entitlements: &Entitlements{Tenants: 5, Unknown: 1}}
	s.Judge(time.Now())
	if len(s.Troubles) != 1 || !strings.HasPrefix(s.Troubles[0].What, "usher cannot tell what 1 tenant may use") {
		t.Errorf("%+v", s.Troubles)
	}
	s.Entitlements = &Entitlements{Tenants: 5, Renamed: []inbox.Renamed{{Platform: "crm", Old: "it's", New: "theirs"}}}
	s.Judge(time.Now())
	const want = "crm/it's (now crm/theirs) may have been renamed"
	if len(s.Troubles) != 1 || !strings.HasPrefix(s.Troubles[0].What, want) || s.Troubles[0].Run != "usher inbox erase "+text.Quote("crm/it's") {
		t.Errorf("%+v", s.Troubles)
	}
}

// Whatever makes usher unready is a trouble.
func TestNotReady(t *testing.T) {
	s := &Status{Health: &Health{Stopping: true, Parts: []Part{{Name: "outbound", On: true}, {Name: "gate", Off: "the gate is off"}}}}
	s.Judge(time.Now())
	checkLines(t, s)
	if len(s.Troubles) != 1 || s.Troubles[0].What != "outbound is not ready: shutting down" || s.Ready || len(s.Parts) != 2 || s.Parts[0].State != "not ready: shutting down" || s.Parts[1].State != "the gate is off" {
		t.Errorf("%+v", s)
	}
}

func TestTokenWords(t *testing.T) {
	for _, tc := range []struct {
		state tokens.State
		want  string
	}{
		{tokens.State{}, "waiting for its first token"},
		{tokens.State{Had: true}, "no valid token: a new one is on its way"},
		{tokens.State{Err: &tokens.RejectedError{Code: "invalid_client"}}, "no token: rejected by the token endpoint"},
		{tokens.State{Err: fmt.Errorf("down")}, "no token: usher cannot get one right now"},
	} {
		if words := tokenWords(tc.state, time.Now()); words != tc.want {
			t.Errorf("%q, want %q", words, tc.want)
		}
	}
}

// A receiver that fails for everybody with different statuses does not answer one of them to everything.
func TestDifferentAnswersOfAReceiver(t *testing.T) {
	held := func(tenant string, status int) inbox.HeldUp {
		return inbox.HeldUp{Down: true, Webhook: &lane.Webhook{Platform: "crm", Tenant: tenant, Received: night,
			Status: lane.Status{Record: lane.Record{Receiver: "main", Tried: []lane.Try{{Status: status, Answer: "no " + tenant}}}}}}
	}
	for want, all := range map[string][]inbox.HeldUp{
		"answers 502 to everything: nothing is delivered, 2 webhooks wait, the oldest for 1m; the last try: 502: no a": {held("a", 502), held("b", 502)},
		"takes nothing: nothing is delivered, 2 webhooks wait, the oldest for 1m; the last try: 500: no a":             {held("a", 500), held("b", 502)},
	} {
		figures := inbox.Figures{NotAccepted: 3, FailsForEverybody: true, Pending: 2, Oldest: time.Minute}
		s := &Status{Gate: &Gate{Set: mainReceiver, Tries: map[string]metrics.RecentTries{"main": {LastFailed: "status", LastStatus: 502, Last: "status"}}}, Health: new(Health),
			Inbox: NewInbox(inbox.Stats{Figures: figures, Receivers: map[string]inbox.Figures{"main": figures}}, all, mainReceiver, nil)}
		s.Judge(time.Now())
		if len(s.Troubles) != 1 || !strings.HasSuffix(s.Troubles[0].What, want) {
			t.Errorf("%+v, want %s", s.Troubles, want)
		}
	}
}

// An usher that has started right before its database went has never counted the tenants.
func TestHeldWhileTheInboxIsAway(t *testing.T) {
	for want, stats := range map[string]inbox.Stats{
		"answers for the 2 of 5 tenants that it holds in memory": {Tenants: 5, At: night, Old: true},
		"answers for the 2 tenants that it holds in memory":      {},
	} {
		away := &engine.AwayError{Err: errors.New("gone")}
		s := &Status{Health: &Health{Parts: []Part{{Name: "gate", On: true}, {Name: "entitlements", On: true}}, Inbox: &InboxHealth{Health: inbox.Health{Err: away}, Opened: true, Shared: true}},
			Inbox: NewInbox(stats, nil, nil, away), Entitlements: &Entitlements{Tenants: stats.Tenants, Held: 2}}
		s.Judge(night)
		if got := s.entitlementsState(night); got != want+", and 503 for others" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
