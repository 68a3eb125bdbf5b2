package demo

import (
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"usher/internal/serve"
	"usher/internal/settings"
)

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
