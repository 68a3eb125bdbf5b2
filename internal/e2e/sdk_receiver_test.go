//go:build !windows

package e2e

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"usher/internal/e2e/sdk"
	"usher/internal/sandbox"
)

// receiveWithSDK is a receiver as there was one before usher: it checks the service's token, and the service's signature
// with the service's own client, to which it gives the body that it has parsed. It prints its address, and then the
// status and the type of each webhook.
const receiveWithSDK = `
const Bunny = require("@bunnyapp/api-client");
const [webhookSigningToken, token] = process.argv.slice(2);
const bunny = new Bunny({ baseUrl: "http://unused.example", accessToken: "unused", webhookSigningToken });
require("http").createServer(async (request, response) => {
	const event = JSON.parse(Buffer.concat(await request.toArray()));
	const valid = request.headers.authorization === "Bearer " + token &&
		bunny.webhooks.validate(request.headers["x-bunny-signature"] ?? "", event);
	const refused = event.payload.tenant.code === "nobody";
	const status = !valid ? 401 : event.type !== "CheckoutValidation" ? 200 : refused ? 403 : 204;
	response.writeHead(status).end(refused ? '["You may not buy this."]' : "");
	console.log(status, event.type);
}).listen(0, "127.0.0.1", function () { console.log("http://127.0.0.1:" + this.address().port); });`

// receiverWithSDK starts that receiver. The second result is its next line.
func receiverWithSDK(t *testing.T, key, token string) (address string, next func() string) {
	t.Helper()
	cmd := sdk.Command(t, receiveWithSDK, key, token)
	out, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	next = func() string {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the receiver has ended: %v", lines.Err())
		}
		return lines.Text()
	}
	return next(), next
}

// A receiver that checks the service's signature and token with the service's own client stays as it is behind usher,
// with an inbox and without one.
func TestReceiverWithServicesOwnClient(t *testing.T) {
	t.Parallel()
	const key, token = "key-of-the-platform", "token-of-the-platform"
	for mode, extra := range map[string][]string{"pass-through": nil, "inbox": {"USHER_WEBHOOK_INBOX=file:" + t.TempDir() + "/inbox.db"}} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			receiver, next := receiverWithSDK(t, key, token)
			u := run(t, slices.Concat([]string{
				"USHER_WEBHOOK_FORWARD_URL=" + receiver, "USHER_WEBHOOK_LISTEN=127.0.0.1:0", "USHER_ADMIN_LISTEN=127.0.0.1:0",
				"USHER_WEBHOOK_SIGNING_KEY=key-of-a-workflow, " + key, "USHER_WEBHOOK_TOKEN=" + token, "USHER_LOG_FORMAT=json",
			}, extra))
			service := sandbox.NewSender(3, u.URL(t, "webhooks")+"/webhooks")
			service.SigningKey, service.Token = key, token
			for range 30 { // with all that payloads may lack, and names beyond ASCII
				if e := service.Change(t.Context()); !e.OK() || next() != "200 TenantProvisioningChange" {
					t.Fatalf("%s: %s", e.Summary, e.Reply)
				}
			}
			for tenant, want := range map[string]string{"acme": "204", "nobody": "403"} {
				e := service.Ask(t.Context(), sandbox.State{Tenant: tenant})
				if line := next(); line != want+" CheckoutValidation" || !strings.HasPrefix(e.String(), want+" ") || tenant == "nobody" && !slices.Equal(e.BuyerReads(), []string{"You may not buy this."}) {
					t.Errorf("checkout: %s, the receiver: %s", e.Reply, line)
				}
			}
			// A receiver that took anything would show nothing.
			direct := sandbox.NewSender(3, receiver)
			direct.SigningKey, direct.Token, direct.Attempts = "forged", token, 1
			if e := direct.Change(t.Context()); e.Status != 401 || next() != "401 TenantProvisioningChange" {
				t.Errorf("forged: %s", e.Reply)
			}
		})
	}
}

// The sandbox answers what the service's own client asks by itself.
func TestServicesOwnClientAsksTheSandbox(t *testing.T) {
	t.Parallel()
	box, err := sandbox.Open(sandbox.Config{Listen: "127.0.0.1:0", ReceiverListen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	box.Sender.Send(t.Context(), sandbox.State{Tenant: "acme", Features: map[string]*int{"users": new(7)}}.Webhook())
	out, err := sdk.Command(t, `
const Bunny = require("@bunnyapp/api-client");
const bunny = new Bunny({ baseUrl: process.argv[2], clientId: "demo", clientSecret: "demo-secret", scope: "product:read" });
bunny.tenantByCode("acme").then((tenant) => console.log(JSON.stringify(tenant)));`, box.URL).Output()
	var tenant struct {
		Code                     string
		Account                  struct{ Name string }
		LatestProvisioningChange struct{ Features string }
	}
	if ended, ok := err.(*exec.ExitError); ok {
		t.Fatalf("%v: %s", err, ended.Stderr)
	}
	if err := json.Unmarshal(out, &tenant); err != nil || tenant.Code != "acme" || tenant.Account.Name != "acme" || !strings.Contains(tenant.LatestProvisioningChange.Features, `"quantity":7`) {
		t.Errorf("%v: %s", err, out)
	}
}
