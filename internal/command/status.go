package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"usher/internal/admin/status"
	"usher/internal/settings"
	"usher/internal/text"
	"usher/internal/view"
)

const statusUsage = `Usage: usher status [--since TIME] [--json]

Says what the overview of the admin page says: one line for each part of usher,
then each trouble, with what it means for your customers, and what to do. The
exit code is 0 only if there is no trouble.

--since 12h (or 2026-01-31T08:00) then also says what was wrong and is over:
from when to when, and on which replica. usher knows the last 7 days; without an
inbox, since it was started.
` + adminPortHelp + `status
`

// startingFor is how long 'usher status' waits for an usher that is starting.
const startingFor = 2 * time.Second

// statusCommand is 'usher status'.
func statusCommand(ctx context.Context, p *Process, args []string) error {
	flags := flag.NewFlagSet("status", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // exit prints the error
	asJSON := flags.Bool("json", false, "")
	path, from, now := "/api/status", time.Time{}, time.Now()
	flags.Func("since", "", func(since string) (err error) {
		if from, err = parseWhen(since, now); err == nil && from.After(now) {
			err = errors.New("this time is still to come")
		}
		return err
	})
	switch rest, err := parseFlags(flags, args); {
	case err != nil:
		return usageError{err}
	case len(rest) > 0:
		return usageErrorf("takes no argument %q, only --since TIME and --json", rest[0])
	}
	if !from.IsZero() {
		path += "?since=" + url.QueryEscape(from.UTC().Format(time.RFC3339))
	}
	api, err := newAdminAPI(p)
	if err != nil {
		return err
	}
	var s status.Status
	var raw []byte
	for { // right after its start usher does not know yet what happened before
		s = status.Status{}
		if raw, err = api.get(ctx, path, &s); err != nil {
			return err
		}
		if !s.Starting || len(s.Troubles) > 0 || time.Since(now) > startingFor {
			break
		}
		select {
		case <-time.After(startingFor / 20):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if *asJSON {
		_, err = p.Stdout.Write(raw)
	} else {
		words := p.statusText(&s)
		if !from.IsZero() {
			words += historyText(&s, from)
		}
		_, err = io.WriteString(p.Stdout, words)
	}
	if err == nil && (len(s.Troubles) > 0 || s.Starting) {
		err = exitCode(exitFailed)
	}
	return err
}

func (p *Process) statusText(s *status.Status) string {
	var out strings.Builder
	var rows [][]string
	for _, part := range s.Parts {
		state := "off"
		switch {
		case part.Ready && part.Tone == "good":
			state = "ready"
		case part.Ready:
			state = "trouble"
		case part.On:
			state = "not ready"
		}
		rows = append(rows, []string{part.Name, state, text.Visible(strings.TrimPrefix(part.State, "not ready: "))})
	}
	for _, line := range view.Rows(rows) {
		out.WriteString(line + "\n")
	}
	if s.CaughtUp != "" {
		fmt.Fprintf(&out, "\nusher %s.\n", s.CaughtUp)
	}
	switch {
	case len(s.Troubles) > 0:
	case s.Starting:
		out.WriteString("\nStarting: usher does not know yet what happened before. Ask again in some seconds.\n")
	default:
		out.WriteString("\nAll is well.\n")
	}
	for i := range s.Troubles {
		t := &s.Troubles[i]
		fmt.Fprintf(&out, "\n%s: %s\n", t.Severity, text.Visible(t.What))
		if !t.Since.IsZero() {
			fmt.Fprintf(&out, "  since %s\n", view.StampAge(t.Since))
		}
		fmt.Fprintf(&out, "  %s\n  %s\n", text.Visible(t.Means), text.Visible(p.commandLines(t.Do)))
		if t.Run != "" {
			fmt.Fprintf(&out, "  %s\n", text.Visible(p.commandLine(t.Run)))
		}
	}
	return out.String()
}

// historyText says what is over, what ended last first.
func historyText(s *status.Status, since time.Time) string {
	var out strings.Builder
	if s.OldHistory {
		out.WriteString("\nThe inbox cannot be read now: below is what this replica has seen itself.\n")
	}
	if len(s.History) == 0 {
		fmt.Fprintf(&out, "\nNothing else was wrong since %s.\n", view.StampAge(since))
		return out.String()
	}
	fmt.Fprintf(&out, "\nOver since %s:\n", view.StampAge(since))
	for i := range s.History {
		t := &s.History[i]
		fmt.Fprintf(&out, "\nover: %s\n  %s\n", text.Visible(status.What(t)), text.Visible(status.Lasted(t)))
	}
	return out.String()
}

// healthcheckCommand is 'usher healthcheck': it asks a running usher whether it is ready.
func healthcheckCommand(ctx context.Context, p *Process) error {
	addr := settings.AdminListen(p.Environ)
	if addr == "off" {
		return errors.New("USHER_ADMIN_LISTEN is off: there is no admin port")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := adminAPIAt(p, addr, "").do(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	fmt.Fprintln(p.Stdout, strings.TrimSpace(string(body)))
	if resp.StatusCode != http.StatusOK {
		return exitCode(exitFailed)
	}
	return nil
}
