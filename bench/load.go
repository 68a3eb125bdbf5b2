package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// query is the body of every call.
const query = `{"query":"query Tenant($code: String!) {` +
	` tenant(code: $code) { id code name platform { code } subscriptions { id state } } }",` +
	`"variables":{"code":"acme-4711"}}`

// window is how long a load lasts: many short ones in turns say more than a few long
// ones where other things run too. wrk counts in whole seconds.
const window = time.Second

// calls are what a load got done.
type calls struct {
	requests int // answered with 200
	refused  int // answered otherwise, or not at all
	took     time.Duration
	p50, p99 time.Duration
}

func (c calls) rate() float64 { return float64(c.requests) / c.took.Seconds() }

// load calls an address for a while, each connection with its next call when the last
// one is answered.
func (o *court) load(ctx context.Context, connections int, target, address string) (calls, error) {
	script := filepath.Join(o.dir, "call.lua")
	text := "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '" + query + "'\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		return calls{}, err
	}
	args := slices.Concat(o.pins.others, []string{
		o.wrk, "-t1", "-c" + strconv.Itoa(connections), fmt.Sprintf("-d%ds", window/time.Second),
		"--timeout", "30s", "--latency", "-s", script, "http://" + address + target,
	})
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("wrk: %w: %s%s", err, out, exit.Stderr)
	}
	if err != nil {
		return calls{}, err
	}
	return parseWrk(string(out))
}

var (
	wrkTotal  = regexp.MustCompile(`(\d+) requests in ([\d.]+\w+),`)
	wrkP50    = regexp.MustCompile(`(?m)^\s+50%\s+([\d.]+\w+)`)
	wrkP99    = regexp.MustCompile(`(?m)^\s+99%\s+([\d.]+\w+)`)
	wrkStatus = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	wrkErrors = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
)

// parseWrk reads what wrk prints. It writes durations as Go does.
func parseWrk(out string) (c calls, err error) {
	total := wrkTotal.FindStringSubmatch(out)
	p50, p99 := wrkP50.FindStringSubmatch(out), wrkP99.FindStringSubmatch(out)
	if total == nil || p50 == nil || p99 == nil {
		return c, fmt.Errorf("wrk says something else than expected: %s", out)
	}
	for _, digits := range slices.Concat(wrkStatus.FindStringSubmatch(out), wrkErrors.FindStringSubmatch(out)) {
		n, _ := strconv.Atoi(digits) // the whole match is among them, and is no number
		c.refused += n
	}
	c.requests, _ = strconv.Atoi(total[1])
	for _, d := range []struct {
		to   *time.Duration
		text string
	}{{&c.took, total[2]}, {&c.p50, p50[1]}, {&c.p99, p99[1]}} {
		if *d.to, err = time.ParseDuration(d.text); err != nil {
			return c, err
		}
	}
	return c, nil
}
