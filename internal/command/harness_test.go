package command

import (
	"context"
	"io"
	"strings"
	"testing"

	"usher/internal/sandbox"
	"usher/internal/testkit"
)

// What the tests of this package use of testkit, by shorter names.
var (
	snapshot = testkit.Snapshot
	get      = testkit.Get
	post     = testkit.Post
	call     = testkit.Call
	wantCall = testkit.WantCall
	whole    = testkit.Whole
)

const query = testkit.Query

// service is a billing service for a program to use.
type service struct {
	*sandbox.Billing
	url string
}

func newService(t *testing.T) *service {
	t.Helper()
	s := testkit.NewService(t)
	return &service{s.Billing, s.URL}
}

// environ is the least that a program needs to use s; its listeners take free ports.
func (s *service) environ(extra ...string) []string {
	return (&testkit.Service{Billing: s.Billing, URL: s.url}).Environ(extra...)
}

// program is an usher that runs in this process.
type program struct {
	usher          *testkit.Usher
	stdout, stderr *testkit.Output
	stop           func() // an orderly shutdown
	ended          <-chan struct{}
	code           int // once ended
}

// start runs usher until the test ends.
func start(t *testing.T, environ []string, args ...string) *program {
	t.Helper()
	p := new(program)
	p.usher = testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int {
		p.code = Main(ctx, Process{Args: args, Environ: environ, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
		return p.code
	})
	p.stdout, p.stderr, p.stop, p.ended = &p.usher.Stdout, &p.usher.Stderr, p.usher.Stop, p.usher.Ended
	return p
}

// url finds where a listener is, from the log.
func (p *program) url(t *testing.T, listener string) string {
	t.Helper()
	return p.usher.URL(t, listener)
}

func (p *program) ready(t *testing.T) {
	t.Helper()
	p.usher.Ready(t)
}
