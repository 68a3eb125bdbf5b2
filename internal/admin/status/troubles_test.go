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
	"usher/internal/receiver"
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
func wrong(port Port, gate *Gate, box *inbox.Stats, err error) []Trouble {
	s := &Status{Ports: []Port{port}, Gate: gate}
	if box != nil {
		held := func(platform, tenant, receiver string, down bool) inbox.HeldUp {
			return inbox.HeldUp{Down: down, Webhook: &inbox.Webhook{Platform: platform, Tenant: tenant, Status: inbox.Status{Record: inbox.Record{Receiver: receiver, Attempts: []inbox.Attempt{{Status: 500}}}}}}
		}
		s.Inbox = NewInbox(*box, []inbox.HeldUp{
			held("docs", "harbour-ltd", "main", false), held("crm", "a/b", "main", false), held("crm", "missed", "main", true), held("crm", "other", "other", false),
		}, mainReceiver, err)
	}
	s.Judge(time.Now())
	return s.Troubles
}

func TestTroubles(t *testing.T) {
	port := func(s tokens.State) Port {
		return Port{
			Name: "main", Source: s, Advice: "check USHER_X", Calls: lastHour(100), Tokens: lastHour(1),
		}
	}
	held := new(tokens.Token)
	fine := tokens.State{Had: true, Token: held}
	refused := func(code string) error { return &tokens.RejectedError{Code: code} }
	gate := func(last string, decisions ...int) *Gate {
		tries := metrics.RecentTries{Last: last, LastFailed: last, Failed: 1}
		if last == "ok" {
			tries = metrics.RecentTries{Last: last, OK: 1}
		}
		return &Gate{Set: mainReceiver, Tries: map[string]metrics.RecentTries{"main": tries}, Decisions: lastHour(decisions...)}
	}
	certified := func(left time.Duration) *Gate {
		g := gate("ok")
		g.CertificateEnds = time.Now().Add(left)
		return g
	}
	box := func(f inbox.Figures, edit func(*inbox.Figures)) *inbox.Stats {
		r := f
		if edit != nil {
			edit(&r)
		}
		return &inbox.Stats{Figures: f, Receivers: map[string]inbox.Figures{"main": r}}
	}
	down := func(r *inbox.Figures) { r.Missed, r.FailsForEverybody = 3, true }
	refuses := func(n int, none bool) func(*inbox.Figures) {
		return func(r *inbox.Figures) { r.NotAccepted, r.FailsForEverybody = n, none }
	}
	with := func(p Port, edit func(*Port)) Port {
		edit(&p)
		return p
	}
	for _, tc := range []struct {
		name string
		port Port
		gate *Gate
		box  *inbox.Stats
		err  error    // the inbox's
		want []string // a part of each trouble: severity, what, do
	}{
		{"well", port(fine), gate("ok"), box(inbox.Figures{}, nil), nil, nil},
		{"gate off", port(fine), nil, nil, nil, nil},
		{"secret refused", port(tokens.State{Err: refused("invalid_client")}), nil, nil, nil,
			[]string{"bad", "Port main: token endpoint refuses: invalid_client", "Calls are answered with an error. What to do: check USHER_X."}},
		{"refused with a token at hand", port(tokens.State{Had: true, Token: held, Err: refused("invalid_client")}), nil, nil, nil,
			[]string{"warn", "invalid_client", "Calls go on with the current token"}},
		{"unreachable", port(tokens.State{Had: true, Err: errors.New("connection refused")}), nil, nil, nil,
			[]string{"bad", "Port main: connection refused", "usher retries, at least once a minute. What to do: check USHER_X."}},
		{"no token yet", port(tokens.State{}), nil, nil, nil, []string{"warn", "has had no token yet", ""}},
		{"revoked", with(port(fine), func(p *Port) { p.Tokens = lastHour(3, 0, 0, 2) }), nil, nil, nil,
			[]string{"warn", "2 tokens were refused long before they expired", "API client of its own"}},
		{"revoked once", with(port(fine), func(p *Port) { p.Tokens = lastHour(3, 0, 0, 1) }), nil, nil, nil, nil},
		{"calls fail", with(port(fine), func(p *Port) { p.Calls = lastHour(5, 5) }), nil, nil, nil,
			[]string{"warn", "5 of 10 calls failed in the last 5 minutes", ""}},
		{"some calls fail", with(port(fine), func(p *Port) { p.Calls = lastHour(500, 5) }), nil, nil, nil, nil},
		{"receiver away", port(fine), gate("error"), box(inbox.Figures{Pending: 1204, Oldest: 130 * time.Second}, down), nil,
			[]string{"bad", "The receiver can't be reached: 1\u202f204 webhooks wait, the oldest for 2\u00a0min 10\u00a0s", "Fix the receiver http://receiver:3000"}},
		{"receiver away, but the last that it answered was fine", port(fine), gate("ok"), box(inbox.Figures{Pending: 1204, Oldest: 130 * time.Second}, down), nil,
			[]string{"bad", "The receiver answers with errors: 1\u202f204 webhooks wait", ""}},
		{"receiver away for a moment", port(fine), gate("error"), box(inbox.Figures{Pending: 1, Oldest: time.Second}, down), nil, nil},
		{"receiver slow", port(fine), gate("ok"), box(inbox.Figures{Pending: 5, Oldest: 2 * time.Minute}, nil), nil, []string{"bad", "slow", ""}},
		{"receiver late", port(fine), gate("timeout"), box(inbox.Figures{Pending: 5, Oldest: 2 * time.Minute}, down), nil, []string{"bad", "does not answer in time", ""}},
		{"some tenants are refused, and the last try was fine", port(fine), gate("ok"), box(inbox.Figures{Pending: 5, Oldest: 2 * time.Minute}, refuses(2, false)), nil,
			[]string{"warn", "The receiver does not take the webhooks of docs/harbour-ltd and crm/a%2Fb", "See below"}},
		{"some tenants are refused, and the last try failed", port(fine), gate("status"), box(inbox.Figures{Pending: 5, Oldest: 2 * time.Minute}, refuses(2, false)), nil,
			[]string{"warn", "The receiver does not take the webhooks of docs/harbour-ltd and crm/a%2Fb", "See below"}},
		{"all tenants are refused", port(fine), gate("status"), box(inbox.Figures{Pending: 5, Oldest: 2 * time.Minute}, refuses(3, true)), nil,
			[]string{"bad", "The receiver answers with errors: 5 webhooks wait", "Fix the receiver"}},
		{"parked", port(fine), gate("status"), box(inbox.Figures{Parked: 1}, nil), nil, []string{"warn", "1 webhook is parked", "send it again"}},
		{"inbox broken", port(fine), gate("ok"), box(inbox.Figures{}, nil), errors.New("no space left"), []string{"bad", "takes no webhooks: no space left", "restart"}},
		{"inbox nearly full", port(fine), gate("ok"), &inbox.Stats{Used: 1000 << 20, Limit: 1 << 30}, nil, []string{"bad", "nearly full: 1000\u00a0MiB of 1.0\u00a0GiB", "USHER_WEBHOOK_INBOX_MAX_BYTES"}},
		{"nobody's", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"": {Pending: 2}}}, nil,
			[]string{"bad", "2 webhooks wait, but no receiver takes their platform", "USHER_WEBHOOK_RECEIVERS_n_PLATFORMS"}},
		{"nobody's, one", port(fine), gate("ok"), &inbox.Stats{Receivers: map[string]inbox.Figures{"": {Pending: 1}}}, nil,
			[]string{"bad", "1 webhook waits, but no receiver takes its platform any more", "or set USHER_WEBHOOK_FORWARD_URL"}},
		{"passed through and failed", port(fine), gate("status", 0, 0, 0, 0, 3), nil, nil, []string{"bad", "answers with errors: 3 webhooks failed", "resend them"}},
		{"failed, but well again", port(fine), gate("ok", 0, 0, 0, 0, 3), nil, nil, nil},
		{"some are rejected", port(fine), gate("ok", 1, 0, 0, 30), nil, nil, nil},
		{"all are rejected", port(fine), gate("ok", 0, 0, 0, 30), nil, nil, []string{"warn", "Every webhook of the last 5 minutes was rejected: 30", "See why"}},
		{"certificate that ends soon", port(fine), certified(3*24*time.Hour + time.Minute), nil, nil, []string{"warn", "The TLS certificate of the webhook gate expires in 3\u00a0d", "USHER_WEBHOOK_TLS_CERT_FILE"}},
		{"certificate that has ended", port(fine), certified(-time.Minute), nil, nil, []string{"bad", "The TLS certificate of the webhook gate has expired", "without a restart"}},
		{"certificate that lasts", port(fine), certified(30 * 24 * time.Hour), nil, nil, nil},
		{"the worst first", port(tokens.State{Err: refused("invalid_client")}), gate("ok"), box(inbox.Figures{Parked: 2}, nil), nil,
			[]string{"bad", "invalid_client", "", "warn", "2 webhooks are parked", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := wrong(tc.port, tc.gate, tc.box, tc.err)
			if len(got)*3 != len(tc.want) {
				t.Fatalf("%+v", got)
			}
			for i, trouble := range got {
				want := tc.want[3*i:]
				if trouble.Severity != want[0] || !strings.Contains(trouble.What, want[1]) || !strings.Contains(trouble.Do, want[2]) || trouble.Do == "" {
					t.Errorf("%+v, want %q", trouble, want[:3])
				}
			}
		})
	}
	shared := port(tokens.State{Err: refused("invalid_client")})
	shared.Shares = "main"
	if got := wrong(shared, nil, nil, nil); len(got) != 0 {
		t.Errorf("told twice: %+v", got)
	}
}

func TestTokenWords(t *testing.T) {
	for _, tc := range []struct {
		state tokens.State
		want  string
		tone  string
	}{
		{tokens.State{}, "waiting for its first token", "warn"},
		{tokens.State{Had: true}, "no valid token: a new one is on its way", "warn"},
		{tokens.State{Err: &tokens.RejectedError{Code: "invalid_client"}}, "no token: the token endpoint refuses", "bad"},
		{tokens.State{Err: fmt.Errorf("down")}, "no token: usher cannot get one right now", "bad"},
	} {
		if words, tone := tokenWords(tc.state, time.Now()); words != tc.want || tone != tc.tone {
			t.Errorf("%q %s, want %q %s", words, tone, tc.want, tc.tone)
		}
	}
}
