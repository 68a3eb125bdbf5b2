package catchup

import (
	"net/url"
	"os/exec"
	"testing"
)

func TestCompact(t *testing.T) {
	for body, want := range map[string]string{
		`{ "a" : [ 1, "b c" ] }`:             `{"a":[1,"b c"]}`,
		`{"a":"R\u0026D \u003cb\u003e"}`:     `{"a":"R&D <b>"}`,
		`{"a":"caf\u00e9 \u2028 \/ \u20ac"}`: "{\"a\":\"café \u2028 / €\"}",
		`{"a":"C:\\u2028\\n \" \n\t\u0001"}`: `{"a":"C:\\u2028\\n \" \n\t\u0001"}`,
		`{"a":"\ud800 \u0026"}`:              `{"a":"\ud800 \u0026"}`, // half of a character
		`{"\u0061":1.50}`:                    `{"a":1.50}`,
		`not JSON`:                           `not JSON`,
	} {
		if got := string(compact([]byte(body))); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

// A receiver that uses the service's Node SDK checks what JSON.stringify makes of what it has parsed.
func TestCompactAsJavaScript(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("no node")
	}
	body := `{"type":"T","payload":{"name":"R\u0026D \u003c\u2028\u00e9\\u0026\/\u0001\b\f\u007f","n":[25,null,true,""]}}`
	out, err := exec.Command("node", "-e", "process.stdout.write(JSON.stringify(JSON.parse(process.argv[1])))", body).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := string(compact([]byte(body))); got != string(out) {
		t.Errorf("%s\nJavaScript writes %s", got, out)
	}
}

func TestSubject(t *testing.T) {
	const id = `{"type":"TenantProvisioningChange","payload":{"tenant":{"id":132,"code":"acme"}}}`
	renamed := subject([]byte(`{"type":"TenantProvisioningChange","payload":{"tenant":{"id":132,"code":"acme-2"}}}`))
	if got := subject([]byte(id)); got == "" || got != renamed {
		t.Errorf("%q and %q", got, renamed)
	}
	seen := make(map[string]string)
	for _, body := range []string{
		id,
		`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme"}}}`,
		`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"acme","platform":{"code":"erp"}}}}`,
		`{"type":"TenantProvisioningChange","payload":{"tenant":{"code":"erp","platform":{"code":"acme"}}}}`,
		`{"type":"TenantProvisioningChange","payload":{"tenant":{"id":9007199254740993}}}`,
		`{"type":"TenantProvisioningChange","payload":{"tenant":{"id":9007199254740992}}}`,
	} {
		key := subject([]byte(body))
		if key == "" || seen[key] != "" {
			t.Errorf("%s: %q, as %s", body, key, seen[key])
		}
		seen[key] = body
	}
	for _, body := range []string{"", "[]", `{"type":"InvoiceCreated","payload":{"tenant":{"id":1}}}`, `{"type":7}`} {
		if key := subject([]byte(body)); key != "" {
			t.Errorf("%s: %q", body, key)
		}
	}
}

func TestIsBelow(t *testing.T) {
	parse := func(address string) *url.URL {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	bases := []*url.URL{parse("https://gate.example.com/webhooks"), parse("https://other.example.com:8443")}
	for address, want := range map[string]bool{
		"https://gate.example.com/webhooks":       true,
		"https://Gate.Example.com:443/webhooks":   true,
		"https://gate.example.com/webhooks/":      true,
		"https://gate.example.com/webhooks/t0ken": true,
		"https://gate.example.com/webhooks?a=b":   true,
		"https://other.example.com:8443/anything": true,
		"https://gate.example.com/webhooks2":      false,
		"https://gate.example.com/":               false,
		"http://gate.example.com/webhooks":        false,
		"https://gate.example.com:8443/webhooks":  false,
		"https://other.example.com/anything":      false,
		"https://gate.example.com.evil/webhooks":  false,
		"https://evil@old.example.com/webhooks":   false,
		"":                                        false, "%": false,
	} {
		if got := IsBelow(address, bases); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}
