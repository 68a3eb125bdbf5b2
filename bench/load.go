package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// query is the body of every call.
const query = `{"query":"query Tenant($code: String!) { tenant(code: $code) { id code name platform { code } subscriptions { id state } } }","variables":{"code":"acme-4711"}}`

// calls are what a load got done.
type calls struct {
	Requests int // answered with 200
	Refused  int // answered otherwise, or not at all
	Took     time.Duration
	P50, P99 time.Duration
}

func (c calls) rate() float64 { return float64(c.Requests) / c.Took.Seconds() }

// load calls addresses for a while, each connection with its next call when the last
// one is answered: with wrk, where it is installed and can, else with a process of
// this program.
func (o *court) load(ctx context.Context, connections int, window time.Duration, target string, addresses ...string) (c calls, err error) {
	if o.wrk != "" && len(addresses) == 1 && window%time.Second == 0 {
		return o.callWithWrk(ctx, addresses[0], connections, window, target)
	}
	return o.callAsProcess(ctx, addresses, connections, window, target)
}

func (o *court) callAsProcess(ctx context.Context, addresses []string, connections int, window time.Duration, target string) (c calls, err error) {
	out, err := o.output(ctx, o.self, "load", "-connections", strconv.Itoa(connections), "-duration", window.String(),
		"-target", target, "-addresses", strings.Join(addresses, ","))
	if err != nil {
		return c, err
	}
	return c, json.Unmarshal(out, &c)
}

// output runs a program beside what is measured, and returns what it prints.
func (o *court) output(ctx context.Context, args ...string) ([]byte, error) {
	args = slices.Concat(o.pins.others, args)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s%s", filepath.Base(args[0]), err, out, exit.Stderr)
	}
	return out, err
}

func (o *court) callWithWrk(ctx context.Context, address string, connections int, window time.Duration, target string) (calls, error) {
	script := filepath.Join(o.dir, "call.lua")
	text := "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\nwrk.body = '" + query + "'\n"
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		return calls{}, err
	}
	out, err := o.output(ctx, o.wrk, "-t1", "-c"+strconv.Itoa(connections), fmt.Sprintf("-d%ds", window/time.Second),
		"--timeout", "30s", "--latency", "-s", script, "http://"+address+target)
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
		c.Refused += n
	}
	c.Requests, _ = strconv.Atoi(total[1])
	for _, d := range []struct {
		to   *time.Duration
		text string
	}{{&c.Took, total[2]}, {&c.P50, p50[1]}, {&c.P99, p99[1]}} {
		if *d.to, err = time.ParseDuration(d.text); err != nil {
			return c, err
		}
	}
	return c, nil
}

// call is the load of our own: connections in turns over the addresses.
func call(ctx context.Context, addresses []string, connections int, window time.Duration, target string) (calls, error) {
	began := time.Now()
	results, errs := make([][]time.Duration, connections), make([]error, connections)
	refused := make([]int, connections)
	var all sync.WaitGroup
	for i := range connections {
		all.Go(func() {
			conn, err := dialCaller(addresses[i%len(addresses)])
			if err != nil {
				errs[i] = err
				return
			}
			defer conn.close()
			for time.Since(began) < window && ctx.Err() == nil {
				sent := time.Now()
				status, err := conn.call(target)
				switch {
				case err != nil:
					errs[i] = err
					return
				case status != http.StatusOK:
					refused[i]++
				default:
					results[i] = append(results[i], time.Since(sent))
				}
			}
		})
	}
	all.Wait()
	c := calls{Took: time.Since(began)}
	latencies := slices.Concat(results...)
	slices.Sort(latencies)
	for _, n := range refused {
		c.Refused += n
	}
	c.Requests, c.P50, c.P99 = len(latencies), quantile(latencies, 0.5), quantile(latencies, 0.99)
	return c, errors.Join(errs...)
}

// caller is a connection to a proxy.
type caller struct {
	conn    net.Conn
	answers *bufio.Reader
}

func dialCaller(address string) (*caller, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &caller{conn, bufio.NewReader(conn)}, nil
}

func (c *caller) close() { c.conn.Close() }

// call sends one call, and reads the answer.
func (c *caller) call(target string) (status int, err error) {
	if err := c.send(target); err != nil {
		return 0, err
	}
	return readAnswer(c.answers)
}

func (c *caller) send(target string) error {
	_, err := fmt.Fprintf(c.conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		target, c.conn.RemoteAddr(), len(query), query)
	return err
}
