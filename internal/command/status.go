package command

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"usher/internal/admin/status"
	"usher/internal/text"
)

const statusUsage = `Usage: usher status [--json]

Says what the overview of the admin page says: one line for each part of usher,
then each trouble, with what it means for your customers, and what to do. The
exit code is 0 only if there is no trouble.
` + adminPortHelp + `status
`

// statusCommand is 'usher status'.
func statusCommand(ctx context.Context, p *Process, args []string) error {
	flags := flag.NewFlagSet("status", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // exit prints the error
	asJSON := flags.Bool("json", false, "")
	switch rest, err := parseFlags(flags, args); {
	case err != nil:
		return usageError{err}
	case len(rest) > 0:
		return usageErrorf("takes no argument %q, only --json", rest[0])
	}
	api, err := newAdminAPI(p)
	if err != nil {
		return err
	}
	var s status.Status
	raw, err := api.get(ctx, "/api/status", &s)
	if err != nil {
		return err
	}
	if *asJSON {
		_, err = p.Stdout.Write(raw)
	} else {
		_, err = io.WriteString(p.Stdout, p.statusText(&s, time.Now()))
	}
	if err == nil && len(s.Troubles) > 0 {
		err = exitCode(exitFailed)
	}
	return err
}

func (p *Process) statusText(s *status.Status, now time.Time) string {
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
		rows = append(rows, []string{part.Name, state, plainText(strings.TrimPrefix(part.State, "not ready: "))})
	}
	for _, line := range columns(rows) {
		out.WriteString(line + "\n")
	}
	if s.Inbox != nil && s.Inbox.Compared != "" {
		out.WriteString(plainText(s.Inbox.Compared) + ".\n")
	}
	if len(s.Troubles) == 0 {
		out.WriteString("\nAll is well.\n")
	}
	for i := range s.Troubles {
		t := &s.Troubles[i]
		fmt.Fprintf(&out, "\n%s: %s\n", t.Severity, plainText(t.What))
		if !t.Since.IsZero() {
			fmt.Fprintf(&out, "  since %s\n", timeAndAge(t.Since, now))
		}
		fmt.Fprintf(&out, "  %s\n  %s\n", plainText(t.Means), plainText(p.commandLines(t.Do)))
		if t.Run != "" {
			fmt.Fprintf(&out, "  %s\n", plainText(p.commandLine(t.Run)))
		}
	}
	return out.String()
}

// plainText replaces the narrow and the fixed spaces of the page, which a terminal may show as something else.
func plainText(s string) string {
	return text.Visible(strings.NewReplacer("\u00a0", " ", "\u202f", "").Replace(s))
}
