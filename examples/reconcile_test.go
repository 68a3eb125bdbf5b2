package examples

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
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
