package command

import (
	"fmt"
	"os"
	"strings"
	"time"

	"usher/internal/admin"
	"usher/internal/job"
	"usher/internal/lane"
	"usher/internal/text"
)

// reconcileCall is one 'usher reconcile'.
type reconcileCall struct {
	*adminAPI
	apply, noDeliver, yes, json, partial bool

	max     int       // -1: the default
	since   time.Time // zero: as far back as any
	typed   string    // --since, as it was typed
	command []string  // empty: the service's webhook log is read

	job     *job.Job
	calls   bool // the command can call the billing service
	signals <-chan os.Signal

	begun    admin.RunLine
	file     *os.File              // what the command has printed
	size     int64                 // until it ended
	toApply  map[int]lane.Compared // what the comparison said of the lines to take in, by their numbers
	listed   map[lane.Result]int
	progress progress
}

// readsLog says that usher reads the billing service's webhook log: there is no command.
func (c *reconcileCall) readsLog() bool { return len(c.command) == 0 }

// flags returns the flags that say what was asked for.
func (c *reconcileCall) flags() string {
	var all []string
	for _, f := range []struct {
		on   bool
		flag string
	}{
		{c.apply, "--apply"}, {c.noDeliver, "--no-deliver"}, {c.partial, "--partial"},
		{c.max >= 0, fmt.Sprint("--max ", c.max)}, {c.typed != "", "--since " + text.Quote(c.typed)},
	} {
		if f.on {
			all = append(all, f.flag)
		}
	}
	return strings.Join(all, " ")
}

func (c *reconcileCall) defaultMax() int { return max(5, min(100, c.begun.Known/10)) }
