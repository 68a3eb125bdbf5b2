package command

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"usher/internal/sandbox"
)

// narrator tells a person what the demo does.
type narrator struct {
	out    io.Writer
	colour bool
}

func (n *narrator) paint(code, s string) string {
	if !n.colour {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (n *narrator) welcome(h *house, w *demoWorld, replaced []string) {
	bold := func(s string) string { return n.paint("1", s) }
	dim := func(s string) string { return n.paint("2", s) }
	port := h.doors[0].url() + "/graphql"
	called := port // as curl has it
	if path, ok := strings.CutPrefix(h.doors[0].addr, "unix:"); ok {
		port, called = h.doors[0].addr, "--unix-socket '"+path+"' http://localhost/graphql"
	}
	curl := fmt.Sprintf(`curl -s %s -H 'Content-Type: application/json' -d '{"query":"{ accounts(limit: 3) { id name } }"}'`, called)
	fmt.Fprintf(n.out, "%s: everything runs on this machine, and nothing leaves it.\n\n", bold("usher demo"))
	fmt.Fprintf(n.out, "  local port       %s\n", bold(port))
	fmt.Fprintf(n.out, "  webhook gate     %s\n", bold(h.webhooks.url()+h.settings.Webhook.Path))
	fmt.Fprintf(n.out, "  entitlements     %s\n", bold(h.answers.url()+"/v1/entitlements/…"))
	if h.admin != nil {
		fmt.Fprintf(n.out, "  admin page       %s\n", bold(h.admin.url()))
	}
	fmt.Fprintf(n.out, "  billing service  %s  %s\n", w.urls[0], dim("(built in; its tokens live 30 s, so that you see renewals)"))
	for i, platform := range demoPlatforms {
		fmt.Fprintf(n.out, "  receiver         %s  %s\n", w.urls[1+i], dim("(built in; gets the webhooks of the platform "+platform+")"))
	}
	for _, addr := range replaced {
		fmt.Fprintf(n.out, "\n  %s is taken: a free port was used instead.\n", addr)
	}
	fmt.Fprintf(n.out, "\nCall the billing service as a program would that knows nothing of OAuth:\n\n  %s\n", bold(curl))
	fmt.Fprintf(n.out, "\nWithout usher the same call is refused:\n\n  %s\n", strings.Replace(curl, called, w.urls[0]+"/graphql", 1))
	if h.admin != nil {
		fmt.Fprintf(n.out, "\nThen open the admin page in a browser: its charts, each webhook and what it changed,\nlive. The demo makes a few calls a second of its own.\n")
	}
	fmt.Fprintf(n.out, "\nA webhook comes every few seconds; some are sent twice, and now and then one of\nthe receivers is down for a while. Below: what changed, and what became of it.\nCtrl-C ends the demo.\n\n")
}

func (n *narrator) webhook(e sandbox.Entry, err error) {
	decision := e.Header.Get("Usher-Decision")
	colour := map[string]string{"queued": "36", "duplicate": "33"}[decision]
	switch {
	case err != nil:
		decision, colour = err.Error(), "31"
	case colour == "":
		colour = "31"
	}
	n.line(e.At, "webhook", colour, decision, e.What)
}

// deliveries tells of those that a receiver accepted after seen, and returns when the
// last of them was.
func (n *narrator) deliveries(receiver string, all []sandbox.Delivery, seen time.Time) time.Time {
	last := seen
	for _, d := range all {
		if d.Until.After(seen) && d.Applied && d.Status == http.StatusOK {
			n.line(d.Until, receiver, "32", "has it", d.Tenant)
			if d.Until.After(last) { // they stand in the order of their arrival
				last = d.Until
			}
		}
	}
	return last
}

func (n *narrator) receiver(name, colour, state, what string) {
	n.line(time.Now(), name, colour, state, what)
}

func (n *narrator) line(at time.Time, who, colour, what, detail string) {
	fmt.Fprintf(n.out, "%s  %-8s  %s  %s\n", at.Format(time.TimeOnly), who, n.paint(colour, fmt.Sprintf("%-9s", what)), detail)
}
