// Package e2e tests the whole program from outside, and tries to break it: in front of a
// network, disks and services that fail, and behind callers that mean harm or know no
// better; in the test's process, or as it is built where only a process can show it. It
// has tests only. What they show is told in docs/SECURITY.md and docs/reliability.md.
//
//	go test ./internal/e2e                     # the short form
//	go test ./internal/e2e -race -short        # without processes, but on PostgreSQL, too; CI does both
//	go test ./internal/e2e -long -timeout 30m  # every byte, every connection
package e2e

import (
	"flag"

	"usher/internal/testkit"
)

var long = flag.Bool("long", false, "the long form: thousands of connections, every byte of an exchange")

// pick is the figure of the form that runs.
func pick[T any](short, longer T) T {
	if *long {
		return longer
	}
	return short
}

// thorough: as CI does, or with -long.
func thorough() bool { return *long || testkit.Thorough() }
