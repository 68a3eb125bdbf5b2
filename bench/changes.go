package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Changes are what programs that keep a copy ask for: all tenants once, and then each change, while many wait for it.

const changesWaiting = 1000

type changesPage struct {
	Changes []json.RawMessage
	Cursor  string
	More    bool
}

// pages are readers of /v1/changes.
type pages struct {
	client *http.Client
	url    string
}

func (p *pages) read(ctx context.Context, query string) (page changesPage, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/v1/changes?"+query, nil)
	if err != nil {
		return page, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return page, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		return page, fmt.Errorf("the answer is %s: %s", resp.Status, body)
	}
	return page, json.NewDecoder(resp.Body).Decode(&page)
}

// all passes over all tenants, and returns the cursor behind them.
func (p *pages) all(ctx context.Context, limit int) (cursor string, tenants int, err error) {
	query := fmt.Sprint("limit=", limit)
	for page := (changesPage{More: true}); page.More; {
		if page, err = p.read(ctx, query); err != nil {
			return "", 0, err
		}
		tenants, cursor = tenants+len(page.Changes), page.Cursor
		query = fmt.Sprint("limit=", limit, "&after=", cursor)
	}
	return cursor, tenants, nil
}

func changes(ctx context.Context, b *bench) ([]*table, error) {
	t := &table{
		title: "The feed /v1/changes",
		header: []string{
			"", "pass over all tenants, s", "a change, 1 waits: p50, ms", "1,000 wait, all have it: p50, ms", "slowest, ms",
		},
		note: fmt.Sprintf("There are %d tenants. A page has 1,000. A change is from the answer to the webhook until those who wait have it. They are 1,000 "+
			"connections to one usher, which shares the machine with them.", pick(b, 10_000, 100_000)),
	}
	for _, w := range inboxes {
		b.say("changes, %s", w.name)
		if err := b.changesOf(ctx, w, t); err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
	}
	return []*table{t}, nil
}

func (b *bench) changesOf(ctx context.Context, w way, t *table) error {
	inbox, stop, err := b.newInbox(w)
	if err != nil {
		return err
	}
	defer stop()
	u, err := b.start(ctx, inbox)
	if err != nil {
		return err
	}
	defer u.stop()
	tenants := pick(b, 10_000, 100_000)
	if err := fill(ctx, u, "crm", tenants); err != nil {
		return err
	}
	readers := &pages{&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: changesWaiting}}, "http://" + u.entitlements}
	defer readers.client.CloseIdleConnections()
	var passes []time.Duration
	var cursor string
	for range pick(b, 1, 3) {
		began, n := time.Now(), 0
		if cursor, n, err = readers.all(ctx, 1000); err != nil || n < tenants {
			return fmt.Errorf("a pass over %d tenants: %w", n, err)
		}
		passes = append(passes, time.Since(began))
	}
	one, err := b.changesFor(ctx, u, readers, &cursor, 1)
	if err != nil {
		return err
	}
	many, err := b.changesFor(ctx, u, readers, &cursor, changesWaiting)
	if err != nil {
		return err
	}
	for _, all := range [][]time.Duration{passes, one, many} {
		slices.Sort(all)
	}
	t.add(w.name, tenths(quantile(passes, 0.5).Seconds()), millis(quantile(one, 0.5)), millis(quantile(many, 0.5)),
		millis(many[len(many)-1]))
	return nil
}

// changesFor measures some changes while so many wait.
func (b *bench) changesFor(
	ctx context.Context, u *usher, readers *pages, cursor *string, waiting int,
) (late []time.Duration, err error) {
	for n := range pick(b, 5, 20) {
		query := "wait=50&after=" + *cursor
		got := make(chan error, waiting)
		for range waiting {
			go func() {
				page, err := readers.read(ctx, query)
				if err == nil && len(page.Changes) != 1 {
					err = fmt.Errorf("a page has %d changes", len(page.Changes))
				}
				got <- err
			}()
		}
		time.Sleep(time.Second) // they all wait
		if err := sendChange(u, fmt.Sprint("changes-", n), 100*waiting+n); err != nil {
			return nil, err
		}
		began := time.Now()
		for range waiting {
			if err := <-got; err != nil {
				return nil, err
			}
		}
		late = append(late, time.Since(began))
		page, err := readers.read(ctx, "after="+*cursor)
		if err != nil {
			return nil, err
		}
		*cursor = page.Cursor
	}
	return late, nil
}

func sendChange(u *usher, tenant string, users int) error {
	resp, err := http.Post("http://"+u.gate+"/webhooks", "application/json", strings.NewReader(snapshotOf("crm", tenant, users)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("a webhook was answered %s", resp.Status)
	}
	return nil
}
