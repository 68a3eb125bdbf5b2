package examples

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"usher/internal/content"
	"usher/internal/sandbox"
	"usher/internal/snapshot"
	"usher/internal/testkit"
)

// tenantLists are the programs in reconcile/, with what each needs.
var tenantLists = []struct {
	name    string
	needs   []string
	command []string
}{
	{"shell", []string{"bash", "curl", "jq"}, []string{"./reconcile/tenants.sh"}},
	{"Python", []string{"python3"}, []string{"python3", "reconcile/tenants.py"}},
}

// Each prints all tenants of several pages as webhooks describe them, or fails.
func TestTenantLists(t *testing.T) {
	t.Parallel()
	box := openBox(t, sandbox.Config{ReceiverListen: "127.0.0.1:0"})
	webhooks := make(map[string][]byte)
	for i := range 230 {
		state := sandbox.State{Tenant: fmt.Sprintf("tenant-%d", i), Platform: "docs", Features: map[string]*int{"users": new(i), "sso": nil}}
		if i == 7 {
			state.Tenant, state.Platform = `a "b"/\ 100%`+"\n", "crm"
		}
		webhooks[laneOf(t, state.Webhook())] = state.Webhook()
		command, _ := json.Marshal(sandbox.SendCommand{State: state, Lost: true})
		resp, err := http.Post(box.URL+"/sandbox/send", "application/json", strings.NewReader(string(command)))
		testkit.Whole(t, resp, err)
	}
	rules, err := content.NewRules([]string{sandbox.EventType}, nil)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"USHER_BASE_URL=" + box.URL, "USHER_CLIENT_ID=demo", "USHER_CLIENT_SECRET=demo-secret", "USHER_SCOPE=standard:read billing:read"}
	for _, tc := range tenantLists {
		t.Run(tc.name, func(t *testing.T) {
			for _, program := range tc.needs {
				needs(t, program)
			}
			command := append([]string{testkit.Binary(t), "exec", "--"}, tc.command...)
			out, err := run(env, "", command...)
			lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
			if err != nil || len(lines) != len(webhooks) {
				t.Fatalf("%d lines of %d: %v\n%s", len(lines), len(webhooks), err, out)
			}
			seen := make(map[string]bool)
			for _, line := range lines {
				body := []byte(fmt.Sprintf(`{"type":%q,"payload":%s}`, sandbox.EventType, line))
				value, fault := content.Parse(body)
				if faults := rules.Faults(value); fault != nil || len(faults) > 0 {
					t.Fatalf("the gate would reject %s: %v %v", line, fault, faults)
				}
				tenant := laneOf(t, body)
				if changes := snapshot.Diff(snapshot.Read(webhooks[tenant]), snapshot.Read(body)); seen[tenant] || len(changes) > 0 {
					t.Fatalf("%s, seen before %t, differs from its webhook: %q", line, seen[tenant], changes)
				}
				seen[tenant] = true
			}
			if out, err := run(append(env, "USHER_SCOPE=standard:write"), "", command...); err == nil || !strings.Contains(out, "Missing required permission") {
				t.Errorf("invalid: %v %s", err, out)
			}
			if out, err := run(nil, "http://127.0.0.1:1/graphql", tc.command...); err == nil || !strings.Contains(out, "127.0.0.1") {
				t.Errorf("nobody listens there: %v %s", err, out)
			}
			box.FailGraphQL(sandbox.Fault{Status: 503})
			defer box.FailGraphQL(sandbox.Fault{})
			if out, err := run(nil, box.URL+"/graphql", tc.command...); err == nil || !strings.Contains(out, "503") {
				t.Errorf("the service is away: %v %s", err, out)
			}
			cmd := exec.Command(tc.command[0], tc.command[1:]...)
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "run me with: usher reconcile") {
				t.Errorf("without USHER_URL: %v %s", err, out)
			}
		})
	}
}

// reconciling is an usher with a gate, and the sandbox that it is for.
type reconciling struct {
	*sandbox.Sandbox
	usher *testkit.Usher
	env   []string                // of commands
	to    atomic.Pointer[url.URL] // where the service sends its webhooks
}

// newReconciling starts an usher. The service sends its webhooks to the receiver itself, as before there was an usher.
func newReconciling(t *testing.T) *reconciling {
	t.Helper()
	r := new(reconciling)
	address := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.Out.URL = r.to.Load() }})
	t.Cleanup(address.Close)
	r.Sandbox = openBox(t, sandbox.Config{ReceiverListen: "127.0.0.1:0", Sender: sandbox.NewSender(1, address.URL)})
	r.send(t, r.ReceiverURL)
	r.usher = start(t, []string{
		"USHER_WEBHOOK_FORWARD_URL=" + r.ReceiverURL, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_WEBHOOK_INBOX=file:" + t.TempDir() + "/inbox.db",
		"USHER_ENTITLEMENTS_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0", "USHER_LOG_FORMAT=json",
	})
	r.usher.Ready(t)
	r.env = []string{"USHER_BASE_URL=" + r.URL, "USHER_CLIENT_ID=demo", "USHER_CLIENT_SECRET=demo-secret", "USHER_SCOPE=billing:read",
		"USHER_ADMIN_LISTEN=" + strings.TrimPrefix(r.usher.URL(t, "admin"), "http://")}
	return r
}

// send has the service send its webhooks there.
func (r *reconciling) send(t *testing.T, to string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	r.to.Store(u)
}

func (r *reconciling) change(t *testing.T, tenant string, users int, lost bool) {
	t.Helper()
	command, _ := json.Marshal(sandbox.SendCommand{State: sandbox.State{Tenant: tenant, Features: map[string]*int{"users": &users}}, Lost: lost})
	resp, err := http.Post(r.URL+"/sandbox/send", "application/json", strings.NewReader(string(command)))
	if _, body := testkit.Whole(t, resp, err); !lost && !strings.Contains(body, `{"status":200`) {
		t.Fatal(body)
	}
}

// want runs usher reconcile with a list of tenants, and checks its exit code and what it prints.
func (r *reconciling) want(t *testing.T, list []string, code int, want string, flags ...string) {
	t.Helper()
	words := append([]string{testkit.Binary(t), "reconcile"}, append(flags, "--")...)
	out, err := run(r.env, "", append(words, list...)...)
	got := 0
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		got = failed.ExitCode()
	}
	if got != code || !strings.Contains(out, want) {
		t.Errorf("usher reconcile %s: exit code %d, want %d with %q:\n%s", strings.Join(flags, " "), got, code, want, out)
	}
}

func (r *reconciling) limit(t *testing.T, tenant string, want int) {
	t.Helper()
	if _, body := testkit.Get(t, r.usher.URL(t, "entitlements")+"/v1/entitlements/"+tenant+"/users"); !strings.Contains(body, fmt.Sprintf(`"limit":%d,`, want)) {
		t.Errorf("%s: %s, want %d users", tenant, body, want)
	}
}

// The order of steps in docs/uses.md for those who already have customers: usher knows them before it gets a
// webhook, the receiver gets nothing that it has, and no change is missed.
func TestYouAlreadyHaveCustomers(t *testing.T) {
	t.Parallel()
	needs(t, "python3")
	page, err := os.ReadFile("../docs/uses.md")
	if err != nil {
		t.Fatal(err)
	}
	_, steps, _ := strings.Cut(string(page), "\n## You already have customers\n")
	flags := regexp.MustCompile(` reconcile (.*?)-- python3 examples/reconcile/tenants.py`).FindAllStringSubmatch(steps, -1)
	if len(flags) != 3 {
		t.Fatalf("the page has %q", flags)
	}
	printed := func(n int) []string { return strings.Fields(flags[n][1]) }
	list := []string{"python3", "reconcile/tenants.py"}
	r := newReconciling(t)
	for _, tenant := range []string{"a", "b", "c", "d", "e", "f", "g"} { // more than --max allows by itself
		r.change(t, tenant, 1, false)
	}
	before := len(r.Receiver.Deliveries())
	r.want(t, list, 3, "7 new", printed(0)...)
	r.want(t, list, 0, "7 tenants taken in", append(printed(1), "--yes")...)
	r.want(t, list, 0, "Nothing differs", printed(0)...)
	r.limit(t, "a", 1)
	if n := len(r.Receiver.Deliveries()); n != before {
		t.Errorf("the receiver got %d webhooks", n-before)
	}
	r.change(t, "b", 2, false) // still past usher
	r.send(t, r.usher.URL(t, "webhooks")+"/webhooks")
	r.change(t, "c", 3, false)
	r.limit(t, "b", 1)
	r.limit(t, "c", 3)
	r.want(t, list, 0, "users 1 → 2", append(printed(2), "--yes")...)
	r.want(t, list, 0, "Nothing differs")
	r.limit(t, "b", 2)
	// They are b by itself, c, and b once more.
	testkit.Eventually(t, "the receiver has all", func() bool { return len(r.Receiver.Deliveries()) == before+3 })
}

func openBox(t *testing.T, c sandbox.Config) *sandbox.Sandbox {
	t.Helper()
	c.Listen = "127.0.0.1:0"
	box, err := sandbox.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	return box
}

// laneOf returns which tenant a webhook is for.
func laneOf(t *testing.T, body []byte) string {
	t.Helper()
	value, fault := content.Parse(body)
	platform, tenant, certain := content.CertainTenant(value)
	if fault != nil || !certain {
		t.Fatalf("%s: %v", body, fault)
	}
	return platform + "/" + tenant
}
