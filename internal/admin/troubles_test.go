package admin

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"usher/internal/admin/hour"
	"usher/tokens"
)

// lastHour is one with so many of each kind in its last minute.
func lastHour(counts ...int) []hour.Minute {
	minutes := make([]hour.Minute, hour.Minutes)
	copy(minutes[hour.Minutes-1].Counts[:], counts)
	return minutes
}

func TestTroubles(t *testing.T) {
	port := func(s tokens.State) PortState {
		return PortState{
			Name: "main", Token: s, ClientVariable: "USHER_CLIENT_ID", SecretVariable: "USHER_CLIENT_SECRET_FILE", ScopeVariable: "USHER_PORTS_0_SCOPE",
			Calls: lastHour(100), Tokens: lastHour(1),
		}
	}
	held := new(tokens.Token)
	fine := tokens.State{Had: true, Token: held}
	refused := func(code string) error { return &tokens.RejectedError{Code: code} }
	gate := func(last string, decisions ...int) *GateState {
		return &GateState{Receivers: []ReceiverState{{Name: "main", Address: "http://receiver:3000", LastTry: last}}, Decisions: lastHour(decisions...)}
	}
	with := func(p PortState, edit func(*PortState)) PortState {
		edit(&p)
		return p
	}
	for _, tc := range []struct {
		name    string
		unready []string
		port    PortState
		gate    *GateState
		box     *InboxStatus
		want    []string // a part of each trouble: severity, what, do
	}{
		{"well", nil, port(fine), gate("ok"), &InboxStatus{}, nil},
		{"gate off", nil, port(fine), nil, nil, nil},
		{"secret refused", nil, port(tokens.State{Err: refused("invalid_client")}), nil, nil,
			[]string{"bad", "Port main: token endpoint refuses: invalid_client", "Check USHER_CLIENT_SECRET_FILE and USHER_CLIENT_ID"}},
		{"refused with a token at hand", nil, port(tokens.State{Had: true, Token: held, Err: refused("invalid_client")}), nil, nil,
			[]string{"warn", "invalid_client", "Calls go on with the current token"}},
		{"scope refused", nil, port(tokens.State{Err: refused("invalid_scope")}), nil, nil,
			[]string{"bad", "invalid_scope", "Check USHER_PORTS_0_SCOPE"}},
		{"refused for another reason", nil, port(tokens.State{Err: refused("access_denied")}), nil, nil,
			[]string{"bad", "access_denied", "USHER_CLIENT_ID, USHER_CLIENT_SECRET_FILE and USHER_PORTS_0_SCOPE"}},
		{"unreachable", nil, port(tokens.State{Had: true, Err: errors.New("connection refused")}), nil, nil,
			[]string{"bad", "Port main: connection refused", "Check USHER_BASE_URL"}},
		{"no token yet", nil, port(tokens.State{}), nil, nil, []string{"warn", "has had no token yet", ""}},
		{"revoked", nil, with(port(fine), func(p *PortState) { p.Tokens = lastHour(3, 0, 0, 2) }), nil, nil,
			[]string{"warn", "2 tokens were refused long before the end", "API client of its own"}},
		{"calls fail", nil, with(port(fine), func(p *PortState) { p.Calls = lastHour(5, 5) }), nil, nil,
			[]string{"warn", "5 of 10 calls failed in the last 5 minutes", ""}},
		{"some calls fail", nil, with(port(fine), func(p *PortState) { p.Calls = lastHour(500, 5) }), nil, nil, nil},
		{"receiver away", nil, port(fine), gate("error"), &InboxStatus{Waiting: 1204, Oldest: 130 * time.Second},
			[]string{"bad", "The receiver can't be reached: 1\u202f204 webhooks wait, the oldest for 2\u00a0min 10\u00a0s", "Bring the receiver http://receiver:3000 back"}},
		{"receiver away for a moment", nil, port(fine), gate("error"), &InboxStatus{Waiting: 1, Oldest: time.Second}, nil},
		{"receiver slow", nil, port(fine), gate("ok"), &InboxStatus{Waiting: 5, Oldest: 2 * time.Minute}, []string{"bad", "slow", ""}},
		{"receiver late", nil, port(fine), gate("timeout"), &InboxStatus{Waiting: 5, Oldest: 2 * time.Minute}, []string{"bad", "does not answer in time", ""}},
		{"parked", nil, port(fine), gate("status"), &InboxStatus{Parked: 1}, []string{"warn", "1 webhook is parked", "send it again"}},
		{"inbox broken", nil, port(fine), gate("ok"), &InboxStatus{Error: "no space left"}, []string{"bad", "takes nothing in: no space left", "restart"}},
		{"passed through and failed", nil, port(fine), gate("status", 0, 0, 0, 0, 3), nil, []string{"bad", "answers with errors: 3 webhooks failed", "resend them"}},
		{"failed, but well again", nil, port(fine), gate("ok", 0, 0, 0, 0, 3), nil, nil},
		{"some are rejected", nil, port(fine), gate("ok", 1, 0, 0, 30), nil, nil},
		{"all are rejected", nil, port(fine), gate("ok", 0, 0, 0, 30), nil, []string{"warn", "Every webhook of the last 5 minutes was rejected: 30", "See why"}},
		{"ending", []string{"shutting down"}, port(fine), nil, nil, []string{"warn", "shutting down", ""}},
		{"the worst first", nil, port(tokens.State{Err: refused("invalid_client")}), gate("ok"), &InboxStatus{Parked: 2},
			[]string{"bad", "invalid_client", "", "warn", "2 webhooks are parked", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := troubles(tc.unready, []PortState{tc.port}, tc.gate, tc.box)
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
	if got := troubles(nil, []PortState{shared}, nil, nil); len(got) != 0 {
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
		{tokens.State{Err: fmt.Errorf("down")}, "no token: none can be had at the moment", "bad"},
	} {
		if words, tone := tokenWords(&PortState{Token: tc.state}, time.Now()); words != tc.want || tone != tc.tone {
			t.Errorf("%q %s, want %q %s", words, tone, tc.want, tc.tone)
		}
	}
}
