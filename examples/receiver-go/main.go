// A receiver of webhooks, to start your own from. It takes what usher forwards,
// verifies that it comes from usher, and stores what each tenant may use: here in one
// file for each tenant, in your application probably in a table.
//
//	WEBHOOK_SECRET=whsec_… STATE_DIR=/var/lib/tenants go run ./examples/receiver-go
//
// The secret is the one that usher has as USHER_WEBHOOK_FORWARD_SIGNING_KEY.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("WEBHOOK_SECRET"), "whsec_"))
	if err != nil || len(key) == 0 {
		log.Fatal("WEBHOOK_SECRET should hold whsec_ and the key in base64")
	}
	dir, addr := os.Getenv("STATE_DIR"), os.Getenv("LISTEN")
	if dir == "" {
		log.Fatal("STATE_DIR should name a folder for the tenants")
	}
	if addr == "" {
		addr = "127.0.0.1:3000"
	}
	http.Handle("POST /provisioning", &receiver{key: key, dir: dir})
	log.Print("listening on ", addr)
	server := &http.Server{Addr: addr, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}

type receiver struct {
	key []byte
	dir string
	mu  sync.Mutex // one snapshot at a time: usher sends those of a tenant in order
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "the body is too large or ended too early", http.StatusBadRequest)
		return
	}
	// Before anything else: do nothing with what usher did not sign.
	sent, err := verify(rc.key, r.Header, body, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	err = rc.apply(body, sent)
	if errors.Is(err, errOlder) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if err != nil {
		// usher tries again later. (A 400 or 422 would say: never try this one again.)
		log.Print(err)
		http.Error(w, "could not be applied", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent) // any 2xx: I have it
}

var errOlder = errors.New("what is known of the tenant was sent later")

// verify checks the headers of standardwebhooks.com: a signature over
// "id.timestamp.body", of one of several keys while they are rotated, and a time
// that is not long ago, so that an old webhook can't be sent again by a stranger. It
// returns that time, in seconds.
func verify(key []byte, h http.Header, body []byte, now time.Time) (int64, error) {
	id, stamp := h.Get("Webhook-Id"), h.Get("Webhook-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return 0, errors.New("webhook-timestamp is missing or too far off")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + stamp + "."))
	mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for _, signature := range strings.Fields(h.Get("Webhook-Signature")) {
		if hmac.Equal([]byte(signature), []byte(want)) { // takes the same time wherever they differ
			return seconds, nil
		}
	}
	return 0, errors.New("webhook-signature does not fit")
}

// state is what the application has to know of a tenant.
type state struct {
	Platform string          `json:"platform"`
	Code     string          `json:"code"`
	Features map[string]*int `json:"features"` // the limit of each; null: no limit
	Sent     int64           `json:"sent"`     // the webhook-timestamp of all that
}

// apply replaces all that was known of the tenant: a feature that the snapshot does not
// list is off. So the same snapshot twice does no harm, and one that never came is made up
// for by the next.
func (rc *receiver) apply(body []byte, sent int64) error {
	var webhook struct {
		Type    string
		Payload struct {
			Tenant struct {
				Code     string
				Platform struct{ Code string }
			}
			Change struct {
				Features []struct {
					Code     string
					Quantity *int
				}
			}
		}
	}
	if err := json.Unmarshal(body, &webhook); err != nil {
		return err
	}
	if webhook.Type != "TenantProvisioningChange" {
		return nil // a question at checkout changes nothing: 2xx allows the purchase
	}
	tenant := webhook.Payload.Tenant
	s := state{tenant.Platform.Code, tenant.Code, map[string]*int{}, sent}
	for _, f := range webhook.Payload.Change.Features {
		if f.Code != "" { // null counts as absent, everywhere
			s.Features[f.Code] = f.Quantity
		}
	}
	content, err := json.Marshal(s)
	if err != nil {
		return err
	}
	// Never use a code as the name of a file: somebody else chose it. And a code alone does
	// not identify a tenant: another platform may have the same one.
	name := sha256.Sum256([]byte(s.Platform + "\x00" + s.Code))
	path := filepath.Join(rc.dir, hex.EncodeToString(name[:])+".json")
	rc.mu.Lock()
	defer rc.mu.Unlock()
	// If several ushers share an inbox, one that was stopped while it was sending may send
	// an old snapshot after others have sent newer ones. Answer 503, not 2xx: if only a
	// clock was set back, usher has to send it again.
	var known state
	if old, err := os.ReadFile(path); err == nil && json.Unmarshal(old, &known) == nil && sent < known.Sent {
		return errOlder
	}
	if err := os.WriteFile(path+".new", append(content, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path) // all of it, or nothing
}
