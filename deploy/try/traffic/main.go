// Traffic is what the scripts in deploy/try send through usher, and what they count. It has two commands:
//
//	traffic receive ADDR          a receiver that accepts everything and remembers what it got
//	traffic send [FLAGS]          sends webhooks and calls for a time, then compares with what the receiver has
//
// Send prints one line of figures. It fails if anything was refused or answered other than 200, or if a
// webhook that was answered 200 did not arrive, or a tenant's webhooks arrived in another order.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "traffic:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "receive":
		return http.ListenAndServe(args[1], &receiver{tenants: make(map[string][]int)})
	case len(args) > 0 && args[0] == "send":
		return send(args[1:])
	}
	return errors.New("usage: traffic receive ADDR | traffic send [FLAGS]")
}

// A receiver keeps, for each tenant, the quantities that its webhooks had, in the order of arrival.
type receiver struct {
	mu      sync.Mutex
	tenants map[string][]int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodGet {
		r.mu.Lock()
		defer r.mu.Unlock()
		_ = json.NewEncoder(w).Encode(r.tenants)
		return
	}
	var webhook struct {
		Payload struct {
			Tenant struct{ Code string }
			Change struct{ Features []struct{ Quantity int } }
		}
	}
	if err := json.NewDecoder(req.Body).Decode(&webhook); err != nil {
		http.Error(w, "not a webhook", http.StatusBadRequest)
		return
	}
	if len(webhook.Payload.Change.Features) == 0 {
		return // of a sandbox
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	tenant := webhook.Payload.Tenant.Code
	r.tenants[tenant] = append(r.tenants[tenant], webhook.Payload.Change.Features[0].Quantity)
}

const call = `{"query":"{ accounts(filter: \"acme\", limit: 1) { id name } }"}`

func snapshot(tenant string, quantity int) string {
	return fmt.Sprintf(`{"type":"TenantProvisioningChange","payload":{`+
		`"tenant":{"id":1,"code":%q,"name":"T","platform":{"id":1,"code":"crm","name":"CRM"}},`+
		`"change":{"features":[{"code":"users","name":"Users","quantity":%d}],"subscriptions":[]}}}`, tenant, quantity)
}

// flags are those of send.
type flags struct {
	webhooks, token, receiver, calls string
	tenants, callers                 int
	lasts, pause, patience           time.Duration
	lossy                            bool
}

// outcomes counts answers by their status, and what got none as "refused".
type outcomes struct {
	mu    sync.Mutex
	count map[string]int
	first string // what went wrong first
}

func (o *outcomes) add(status string, problem error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count == nil {
		o.count = make(map[string]int)
	}
	o.count[status]++
	if problem != nil && o.first == "" {
		o.first = fmt.Sprintf("%s at %s", problem, time.Now().Format("15:04:05.000"))
	}
}

func (o *outcomes) String() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(o.count)) {
		parts = append(parts, fmt.Sprintf("%d %s", o.count[status], status))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

func (o *outcomes) allOK() bool { return len(o.count) == 1 && o.count["200"] > 0 }

func send(args []string) error {
	var f flags
	set := flag.NewFlagSet("send", flag.ContinueOnError)
	set.StringVar(&f.webhooks, "webhooks", "", "where webhooks go; empty: nowhere")
	set.StringVar(&f.token, "token", "", "the webhook token")
	set.StringVar(&f.receiver, "receiver", "", "the receiver to compare with")
	set.StringVar(&f.calls, "calls", "", "where calls go, http://… or unix:/path; empty: nowhere")
	set.IntVar(&f.tenants, "tenants", 8, "that many tenants, each a sender")
	set.IntVar(&f.callers, "callers", 4, "that many callers")
	set.DurationVar(&f.lasts, "for", 10*time.Second, "how long")
	set.DurationVar(&f.pause, "pause", 20*time.Millisecond, "of each sender and caller, after an answer")
	set.DurationVar(&f.patience, "patience", 30*time.Second,
		"how long what was answered 200 may take to arrive, and a request to be answered")
	set.BoolVar(&f.lossy, "lossy", false, "requests may be refused: only what was answered 200 counts")
	if err := set.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.lasts)
	defer cancel()
	var webhooks, calls outcomes
	var everybody sync.WaitGroup
	accepted := make([][]int, f.tenants) // of each tenant, what was answered 200
	prefix := fmt.Sprintf("t%d-", time.Now().UnixMilli())
	if f.webhooks != "" {
		for i := range f.tenants {
			client := newClient("", i%2 == 0, f.patience)
			everybody.Go(func() {
				repeat(ctx, f.pause, func(n int) {
					if post(client, f.webhooks, f.token, snapshot(fmt.Sprint(prefix, i), n), &webhooks) {
						accepted[i] = append(accepted[i], n)
					}
				})
			})
		}
	}
	if f.calls != "" {
		url := f.calls
		socket, isSocket := strings.CutPrefix(f.calls, "unix:")
		if isSocket {
			url = "http://localhost/graphql"
		}
		for i := range f.callers {
			client := newClient(socket, i%2 == 0, f.patience)
			everybody.Go(func() {
				repeat(ctx, f.pause, func(int) { post(client, url, "", call, &calls) })
			})
		}
	}
	everybody.Wait()
	faults := compare(f, prefix, accepted)
	fmt.Printf("webhooks: %s; calls: %s\n", &webhooks, &calls)
	for _, of := range []*outcomes{&webhooks, &calls} {
		if of.first != "" {
			fmt.Fprintln(os.Stderr, "the first that went wrong:", of.first)
		}
	}
	if f.webhooks != "" && webhooks.count["200"] == 0 || f.calls != "" && calls.count["200"] == 0 {
		faults = append(faults, "nothing was answered 200")
	}
	if !f.lossy && (f.webhooks != "" && !webhooks.allOK() || f.calls != "" && !calls.allOK()) {
		faults = append(faults, "not everything was answered 200")
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

func repeat(ctx context.Context, pause time.Duration, do func(n int)) {
	for n := 1; ctx.Err() == nil; n++ {
		do(n)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// newClient returns one that keeps its connection, or opens one for each request.
func newClient(socket string, keeps bool, patience time.Duration) *http.Client {
	transport := &http.Transport{DisableKeepAlives: !keeps}
	if socket != "" {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}
	}
	return &http.Client{Transport: transport, Timeout: patience}
}

func post(client *http.Client, url, token, body string, count *outcomes) (ok bool) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		count.add("refused", err)
		return false
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		count.add("refused", err)
		return false
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		count.add("refused", err)
		return false
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %s", resp.StatusCode, bytes.TrimSpace(answer[:min(len(answer), 300)]))
	}
	count.add(fmt.Sprint(resp.StatusCode), err)
	return err == nil
}

// compare waits until the receiver has what was accepted, and says what it does not have, or has in another order.
func compare(f flags, prefix string, accepted [][]int) (faults []string) {
	if f.receiver == "" {
		return nil
	}
	for end := time.Now().Add(f.patience); ; time.Sleep(200 * time.Millisecond) {
		got, err := received(f)
		if faults = nil; err != nil {
			faults = append(faults, err.Error())
		}
		for i, sent := range accepted {
			faults = append(faults, judge(fmt.Sprint(prefix, i), sent, got[fmt.Sprint(prefix, i)])...)
		}
		if len(faults) == 0 || time.Now().After(end) {
			return faults
		}
	}
}

func received(f flags) (got map[string][]int, err error) {
	resp, err := http.Get(f.receiver)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(resp.Body).Decode(&got)
	return got, err
}

func judge(tenant string, accepted, got []int) (faults []string) {
	missing := 0
	for _, n := range accepted {
		if !slices.Contains(got, n) {
			missing++
		}
	}
	if missing > 0 {
		faults = append(faults, fmt.Sprintf("tenant %s: %d webhooks were answered 200 and did not arrive",
			tenant, missing))
	}
	if !slices.IsSorted(got) { // one that came twice is fine
		faults = append(faults, fmt.Sprintf("tenant %s: its webhooks arrived in another order", tenant))
	}
	return faults
}
