// A copy of what each tenant may use, in SQLite.
//
//	usher changes --cursor cursor --follow -- copy-go copy.db
//
// takes the lines of 'usher changes' into the tables of copy.db. Without usher's command,
//
//	copy-go copy.db http://127.0.0.1:8070
//
// asks usher itself (with ENTITLEMENTS_KEY, if it is set), and stores its cursor in the same file.
package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	_ "modernc.org/sqlite"
)

const tables = `
CREATE TABLE IF NOT EXISTS tenants (
	platform TEXT, tenant TEXT, webhook TEXT, passed INTEGER,
	PRIMARY KEY (platform, tenant));
CREATE TABLE IF NOT EXISTS features (
	platform TEXT, tenant TEXT, feature TEXT, "limit" INTEGER, value TEXT,
	PRIMARY KEY (platform, tenant, feature));
CREATE TABLE IF NOT EXISTS place (cursor TEXT, everybody INTEGER);
INSERT INTO place SELECT '', 1 WHERE NOT EXISTS (SELECT * FROM place);
`

type change struct {
	All              string // "begin" and "end" stand around all tenants
	Tenant, Platform string
	Webhook          string
	Erased           bool
	Features         []struct { // none if they are unknown: then no row says yes
		Feature, Value string
		Limit          *int64 // nil: no limit
	}
}

func main() {
	if len(os.Args) < 2 || len(os.Args) > 3 {
		log.Fatal("usage: copy-go FILE [URL]")
	}
	db, err := sql.Open("sqlite",
		"file:"+os.Args[1]+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err == nil {
		_, err = db.Exec(tables)
	}
	if err == nil && len(os.Args) == 3 {
		err = follow(db, os.Args[2])
	} else if err == nil {
		err = inOne(db, func(tx *tx) { take(tx, os.Stdin) })
	}
	if err != nil {
		log.Fatal(err)
	}
}

// A tx is a transaction that remembers its first error.
type tx struct {
	*sql.Tx
	err error
}

func (t *tx) do(statement string, args ...any) {
	if t.err == nil {
		_, t.err = t.Exec(statement, args...)
	}
}

// inOne does all of fn, or nothing.
func inOne(db *sql.DB, fn func(*tx)) error {
	begun, err := db.Begin()
	if err != nil {
		return err
	}
	defer begun.Rollback()
	t := &tx{Tx: begun}
	if fn(t); t.err != nil {
		return t.err
	}
	return begun.Commit()
}

// take takes the lines of 'usher changes'.
func take(t *tx, lines io.Reader) {
	for from := json.NewDecoder(lines); t.err == nil; {
		var c change
		switch err := from.Decode(&c); {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			t.err = err
		case c.All == "begin":
			begin(t)
		case c.All == "end":
			end(t)
		default:
			replace(t, c)
		}
	}
}

// begin: all tenants follow. The column passed says which of them did.
func begin(t *tx) { t.do("UPDATE tenants SET passed = 0") }

// end deletes those that did not.
func end(t *tx) {
	t.do("DELETE FROM features WHERE (platform, tenant) IN (SELECT platform, tenant FROM tenants WHERE passed = 0)")
	t.do("DELETE FROM tenants WHERE passed = 0")
}

// replace replaces all that is known of a tenant: so the same change twice does no harm.
func replace(t *tx, c change) {
	t.do("DELETE FROM features WHERE platform = ? AND tenant = ?", c.Platform, c.Tenant)
	t.do("DELETE FROM tenants WHERE platform = ? AND tenant = ?", c.Platform, c.Tenant)
	if c.Erased {
		return
	}
	t.do("INSERT INTO tenants VALUES (?, ?, ?, 1)", c.Platform, c.Tenant, c.Webhook)
	for _, f := range c.Features {
		t.do("INSERT INTO features VALUES (?, ?, ?, ?, ?)", c.Platform, c.Tenant, f.Feature, f.Limit, f.Value)
	}
}

type page struct {
	Changes []change
	Cursor  string
	More    bool
}

var errUnknown = errors.New("the inbox has gone back in time, or is another one")

func ask(at, cursor string, wait int) (p page, err error) {
	query := url.Values{"wait": {strconv.Itoa(wait)}}
	if cursor != "" {
		query.Set("after", cursor)
	}
	req, err := http.NewRequest("GET", at+"/v1/changes?"+query.Encode(), nil)
	if err != nil {
		return p, err
	}
	req.Header.Set("X-Usher-Key", os.Getenv("ENTITLEMENTS_KEY"))
	answer, err := (&http.Client{Timeout: time.Duration(wait+10) * time.Second}).Do(req)
	if err != nil {
		return p, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return p, json.NewDecoder(answer.Body).Decode(&p)
	case http.StatusGone:
		return p, errUnknown
	}
	return p, fmt.Errorf("usher answered %s", answer.Status)
}

func follow(db *sql.DB, at string) error {
	for more := true; ; {
		var cursor string
		var everybody bool // a pass over all tenants is under way
		if err := db.QueryRow("SELECT cursor, everybody FROM place").Scan(&cursor, &everybody); err != nil {
			return err
		}
		wait := 50
		if more || everybody {
			wait = 0
		}
		p, err := ask(at, cursor, wait)
		switch {
		case errors.Is(err, errUnknown):
			err = inOne(db, func(t *tx) { t.do("UPDATE place SET cursor = '', everybody = 1") })
		case err != nil:
			log.Print(err)
			time.Sleep(time.Second)
			continue
		default: // the changes and the cursor behind them: both or none
			more = p.More
			err = inOne(db, func(t *tx) {
				if cursor == "" {
					begin(t)
				}
				for _, c := range p.Changes {
					replace(t, c)
				}
				if everybody && !more {
					end(t)
				}
				t.do("UPDATE place SET cursor = ?, everybody = ?", p.Cursor, everybody && more)
			})
		}
		if err != nil {
			return err
		}
	}
}
