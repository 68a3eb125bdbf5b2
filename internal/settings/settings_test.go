package settings

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/outbound"
	"usher/internal/secret"
)

var minimal = []string{
	"USHER_BASE_URL=https://billing.example.com", "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=t0psecret",
}

func with(extra ...string) []string { return append(slices.Clone(minimal), extra...) }

// two is the environment of a gate with two receivers, and none for other platforms.
func two(extra ...string) []string {
	return append([]string{"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://a",
		"USHER_WEBHOOK_RECEIVERS_1_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL=http://b"}, extra...)
}

func TestPorts(t *testing.T) {
	s, err := Read(with("USHER_KEY=k",
		"USHER_PORTS_0_LISTEN=127.0.0.1:8081", "USHER_PORTS_0_SCOPE=standard:read",
		"USHER_PORTS_7_LISTEN=unix:/run/x.sock", "USHER_PORTS_7_NAME=scripts", "USHER_PORTS_7_CLIENT_ID=other",
		"USHER_PORTS_7_CLIENT_SECRET=other-secret", "USHER_PORTS_7_KEY=k7"))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Outbound.Ports) != 3 {
		t.Fatalf("%d ports", len(s.Outbound.Ports))
	}
	if p := s.Outbound.Ports[1]; p.Name != "0" || p.Scope != "standard:read" || p.ClientID != "app" || p.ClientSecret.Get() != "t0psecret" || p.Key.Get() != "k" {
		t.Errorf("inherits: %+v", p)
	}
	if p := s.Outbound.Ports[2]; p.Name != "scripts" || p.ClientID != "other" || p.ClientSecret.Get() != "other-secret" || p.Key.Get() != "k7" || p.Scope != "standard:read standard:write" {
		t.Errorf("its own: %+v", p)
	}
}

// Each problem is one line that names the variable and says what it should hold. It never shows a secret.
func TestProblems(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		env  []string
		want []string // a line each, in any order: parts of it
	}{
		{"nothing set", nil, []string{"no part of usher is on: outbound is off (to switch it on, set USHER_BASE_URL), the webhook gate is off (to switch it on, set USHER_WEBHOOK_FORWARD_URL), the entitlements port is off (to switch it on, set USHER_ENTITLEMENTS_LISTEN). To try"}},
		{"nothing that switches a part on", []string{"USHER_CLIENT_ID=app", "USHER_WEBHOOK_TOKEN=t0psecret"}, []string{"no part of usher is on"}},
		{"the gate switched off, and nothing else on", []string{"USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_LISTEN=off"}, []string{"the webhook gate is off (to switch it on, set USHER_WEBHOOK_LISTEN to an address)"}},
		{"nothing but the address", minimal[:1], []string{"USHER_CLIENT_ID is not set", "USHER_CLIENT_SECRET is not set"}},
		{"bad values of outbound, which is off", []string{"USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_UPSTREAM_TIMEOUT=soon", "USHER_LISTEN=8080", "USHER_CLIENT_SECRET_FILE=/nowhere",
			"USHER_PORTS_0_SCOPE=  ", "USHER_PORTS_1_LISTEN=x"},
			[]string{`USHER_UPSTREAM_TIMEOUT is "soon"`, `USHER_LISTEN is "8080"`, "USHER_CLIENT_SECRET_FILE is", "USHER_PORTS_0_SCOPE holds only white space", `USHER_PORTS_1_LISTEN is "x"`}},
		{"bad values of the gate, which is off", with("USHER_WEBHOOK_TIMEOUT=soon", "USHER_WEBHOOK_PATH=a", "USHER_WEBHOOK_INBOX=/x", "USHER_WEBHOOK_TLS_CERT_FILE=/x", "USHER_WEBHOOK_TLS_KEY_FILE=/x",
			"USHER_WEBHOOK_SIGNATURE_ALGORITHM=md5", "USHER_WEBHOOK_LISTEN=8090"),
			[]string{`USHER_WEBHOOK_TIMEOUT is "soon"`, "USHER_WEBHOOK_PATH", "USHER_WEBHOOK_INBOX can't be used", "USHER_WEBHOOK_TLS_CERT_FILE is", "USHER_WEBHOOK_TLS_KEY_FILE is",
				"USHER_WEBHOOK_SIGNATURE_ALGORITHM", `USHER_WEBHOOK_LISTEN is "8090", but should hold host:port, such as 127.0.0.1:8090, unix:/path, or off`}},
		{"gate switched off in capitals", []string{"USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_LISTEN=OFF"}, []string{`USHER_WEBHOOK_LISTEN is "OFF"`}},
		{"all at once", with("USHER_LISTEN=8080", "USHER_UPSTREAM_TIMEOUT=soon", "USHER_REPLAY_LIMIT=1MB", "USHER_INSECURE=yes", "USHER_LOG_LEVEL=loud", "USHER_LOG_FORMAT=xml", "USHER_SHUTDOWN_GRACE=-1s"),
			[]string{`USHER_LISTEN is "8080", but should hold host:port`, `USHER_UPSTREAM_TIMEOUT is "soon", but should hold a duration`, `USHER_REPLAY_LIMIT is "1MB", but should hold a size`,
				`USHER_INSECURE is "yes", but should hold true or false`, `USHER_LOG_LEVEL is "loud"`, `USHER_LOG_FORMAT is "xml"`, `USHER_SHUTDOWN_GRACE is "-1s"`}},
		{"plain http", with("USHER_BASE_URL=http://billing.example.com"), []string{"USHER_ALLOW_PLAIN_HTTP"}},
		{"no scheme", with("USHER_BASE_URL=billing.example.com"), []string{`USHER_BASE_URL is "billing.example.com"`}},
		{"query", with("USHER_BASE_URL=https://billing.example.com?key=t0psecret"), []string{"USHER_BASE_URL should hold an address such as"}},
		{"fragment", with("USHER_BASE_URL=https://billing.example.com#t0psecret"), []string{"USHER_BASE_URL should hold an address such as"}},
		{"user info", with("USHER_BASE_URL=https://u:t0psecret@billing.example.com"), []string{"USHER_BASE_URL holds a user name or password"}},
		{"base address with a port that is none", with("USHER_BASE_URL=https://billing.example.com:99999"), []string{"USHER_BASE_URL is"}},
		{"proxy", with("HTTPS_PROXY=http://u:t0psecret%zz@proxy:1"), []string{"HTTPS_PROXY can't be read"}},
		{"proxy of a kind that usher does not speak", with("HTTPS_PROXY=socks4://u:t0psecret@proxy:1080"), []string{"HTTPS_PROXY can't be read (not shown, as it may hold a password), but should hold a proxy's address, such as http://proxy:3128 or socks5://proxy:1080"}},
		{"bad key that is inherited", with("USHER_KEY=k ", "USHER_PORTS_0_LISTEN=127.0.0.1:81"), []string{"USHER_KEY has white space"}},
		{"both, beyond loopback", with("USHER_KEY=k", "USHER_KEY_FILE=/x", "USHER_LISTEN=:8080"), []string{"USHER_KEY and USHER_KEY_FILE are both set"}},
		{"short key beyond loopback", with("USHER_KEY=fifteen-letters", "USHER_LISTEN=:8080"), []string{"USHER_KEY holds a key (not shown) that is shorter than 16"}},
		{"short key of its own", with("USHER_PORTS_0_KEY=t0psecret", "USHER_PORTS_0_LISTEN=:81"), []string{"USHER_PORTS_0_KEY holds a key (not shown) that is shorter than 16"}},
		{"empty key among others", with("USHER_KEY=t0psecret,,k"), []string{"USHER_KEY has an empty part"}},
		{"beyond loopback", with("USHER_LISTEN=0.0.0.0:8080"), []string{"USHER_KEY (or USHER_KEY_FILE), or USHER_INSECURE=true"}},
		{"further port beyond loopback", with("USHER_PORTS_0_LISTEN=[::]:81"), []string{"USHER_PORTS_0_KEY"}},
		{"same name", with("USHER_PORTS_0_NAME=main", "USHER_PORTS_0_LISTEN=127.0.0.1:81"), []string{"USHER_PORTS_0_NAME"}},
		{"same address", with("USHER_PORTS_0_LISTEN=127.0.0.1:8080"), []string{"USHER_PORTS_0_LISTEN is \"127.0.0.1:8080\", but should differ from USHER_LISTEN"}},
		{"admin token twice named", with("USHER_ADMIN_TOKEN=a:b:t0psecret"), []string{"USHER_ADMIN_TOKEN has a part (not shown)"}},
		{"admin token, an empty part", with("USHER_ADMIN_TOKEN=ana:t0psecret,"), []string{"USHER_ADMIN_TOKEN has a part (not shown)"}},
		{"only for looking", with("USHER_ADMIN_READ_TOKEN=t0psecret"), []string{"USHER_ADMIN_READ_TOKEN is set, but USHER_ADMIN_TOKEN is not"}},
		{"for looking and acting", with("USHER_ADMIN_TOKEN=ana:t0psecret", "USHER_ADMIN_READ_TOKEN=ben:t0psecret"), []string{"USHER_ADMIN_READ_TOKEN holds a token (not shown) that is also in USHER_ADMIN_TOKEN"}},
		{"admin beyond loopback", with("USHER_ADMIN_LISTEN=0.0.0.0:9095"), []string{"USHER_ADMIN_TOKEN"}},
		{"short admin token beyond loopback", with("USHER_ADMIN_LISTEN=0.0.0.0:9095", "USHER_ADMIN_TOKEN=a"), []string{"USHER_ADMIN_TOKEN holds a token (not shown) that is shorter than 16"}},
		{"one of the admin tokens is short, and its name does not count", with("USHER_ADMIN_LISTEN=:9095", "USHER_ADMIN_TOKEN=sixteen-letters-,ana-with-a-long-name:fifteen-letters"), []string{"USHER_ADMIN_TOKEN holds a token (not shown) that is shorter than 16"}},
		{"short entitlements key beyond loopback", two("USHER_ENTITLEMENTS_LISTEN=:8070", "USHER_WEBHOOK_INBOX=file:x", "USHER_ENTITLEMENTS_KEY=fifteen-letters"), []string{"USHER_ENTITLEMENTS_KEY holds a key (not shown) that is shorter than 16"}},
		{"no admin port, misspelt", with("USHER_ADMIN_LISTEN=OFF"), []string{`USHER_ADMIN_LISTEN is "OFF", but should hold host:port, such as 127.0.0.1:9095, unix:/path, or off`}},
		{"socket without a file", with("USHER_LISTEN=unix:@usher"), []string{"USHER_LISTEN should hold host:port"}},
		{"both", with("USHER_CLIENT_SECRET_FILE=/x"), []string{"USHER_CLIENT_SECRET and USHER_CLIENT_SECRET_FILE are both set"}},
		{"no such file", append(minimal[:2:2], "USHER_CLIENT_SECRET_FILE="+dir+"/none"), []string{"USHER_CLIENT_SECRET_FILE is"}},
		{"secret for a file", append(minimal[:2:2], "USHER_CLIENT_SECRET_FILE=t0psecret"), []string{"USHER_CLIENT_SECRET_FILE names a file that does not exist"}},
		{"secret of several lines for a file", append(minimal[:2:2], "USHER_CLIENT_SECRET_FILE=-----BEGIN\nt0psecret/x=\n"), []string{"USHER_CLIENT_SECRET_FILE names a file that does not exist"}},
		{"path of several lines", with("USHER_WEBHOOK_SCHEMA_FILE=/no\nwhere"), []string{`USHER_WEBHOOK_SCHEMA_FILE is "/no\nwhere"`}},
		{"empty file", append(minimal[:2:2], "USHER_CLIENT_SECRET_FILE="+empty), []string{"the file is empty"}},
		{"key that can't be sent", with("USHER_KEY=t0psecret "), []string{"USHER_KEY has white space"}},
		{"slip", with("USHER_CLINET_ID=x"), []string{"USHER_CLINET_ID is not known: did you mean USHER_CLIENT_ID?"}},
		{"small letters", with("usher_key_file=x"), []string{"usher_key_file is not known: did you mean USHER_KEY_FILE?"}},
		{"words in another order", with("USHER_ADMIN_TOKEN_READ=x"), []string{"USHER_ADMIN_TOKEN_READ is not known: did you mean USHER_ADMIN_READ_TOKEN?"}},
		{"slip in a port", with("USHER_PORTS_3_LISTEN=127.0.0.1:83", "USHER_PORTS_3_SCOP=x"), []string{"did you mean USHER_PORTS_3_SCOPE?"}},
		{"slip before the index", with("USHER_PORT_0_LISTEN=127.0.0.1:83"), []string{"did you mean USHER_PORTS_0_LISTEN?"}},
		{"slip in the index", with("USHER_PORTS_01_LISTEN=127.0.0.1:83"), []string{"USHER_PORTS_01_LISTEN is not known: did you mean USHER_PORTS_1_LISTEN?"}},
		{"no index", with("USHER_PORTS_n_KEY=t0psecret"), []string{"USHER_PORTS_n_KEY is not known: did you mean USHER_PORTS_0_KEY?"}},
		{"index beyond any number", with("USHER_PORTS_99999999999999999999_SCOPE=x"), []string{"USHER_PORTS_99999999999999999999_LISTEN is not set"}},
		{"prefix alone", with("USHER_PORTS_0_=x"), []string{"USHER_PORTS_0_LISTEN is not set"}},
		{"slip of a short name", with("USHER_KEYS=t0psecret"), []string{"did you mean USHER_KEY?"}},
		{"nothing but commas", with("USHER_ALLOWED_HOSTS=,", "USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TYPES=,"),
			[]string{`USHER_ALLOWED_HOSTS is ","`, "USHER_WEBHOOK_TYPES"}},
		{"secret of white space", with("USHER_CLIENT_SECRET=  ", "USHER_WEBHOOK_SIGNING_KEY=\t"),
			[]string{"USHER_CLIENT_SECRET holds only white space", "USHER_WEBHOOK_SIGNING_KEY holds only white space"}},
		{"hosts", with("USHER_ALLOWED_HOSTS=*.example.com"), []string{"USHER_ALLOWED_HOSTS"}},
		{"scope", with("USHER_SCOPE=  "), []string{"USHER_SCOPE"}},
		{"gate beyond loopback", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_LISTEN=0.0.0.0:8090"), []string{"USHER_WEBHOOK_INSECURE"}},
		{"receiver", with("USHER_WEBHOOK_FORWARD_URL=r:t0psecret"), []string{"should hold the receiver's address"}},
		{"receiver with a password", with("USHER_WEBHOOK_FORWARD_URL=ftp://u:t0psecret@r/x"), []string{"should hold the receiver's address"}},
		{"receiver without a scheme", with("USHER_WEBHOOK_FORWARD_URL=localhost:3000/t0psecret"), []string{`USHER_WEBHOOK_FORWARD_URL is "localhost:3000…", but should hold the receiver's address`}},
		{"receiver in words", with("USHER_WEBHOOK_FORWARD_URL=here"), []string{`USHER_WEBHOOK_FORWARD_URL is "here…"`}},
		{"signature's header", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_SIGNATURE_HEADER=X Signature:"), []string{`USHER_WEBHOOK_SIGNATURE_HEADER is "X Signature:", but should hold the name of a header`}},
		{"path in letters that a URL does not have", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_PATH=/hökar"), []string{`USHER_WEBHOOK_PATH is "/hökar", but should hold a path such as /webhooks, escaped as in a URL`}},
		{"path that is an address", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_PATH=//host/a"), []string{`USHER_WEBHOOK_PATH is "//host/a"`}},
		{"path with a fragment", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_PATH=/a#"), []string{`USHER_WEBHOOK_PATH is "/a#"`}},
		{"receiver's port", with("USHER_WEBHOOK_FORWARD_URL=http://r:99999"), []string{"should hold the receiver's address"}},
		{"empty token among several", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TOKEN=a,,b"), []string{"USHER_WEBHOOK_TOKEN has an empty part"}},
		{"half of TLS", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TLS_CERT_FILE=/x"), []string{"both, or neither"}},
		{"TLS without its files", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TLS_CERT_FILE="+dir+"/none", "USHER_WEBHOOK_TLS_KEY_FILE="+dir),
			[]string{"USHER_WEBHOOK_TLS_CERT_FILE is", "USHER_WEBHOOK_TLS_KEY_FILE is"}},
		{"TLS with files that have no end", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TLS_CERT_FILE=/dev/zero", "USHER_WEBHOOK_TLS_KEY_FILE=/dev/zero"),
			[]string{"USHER_WEBHOOK_TLS_CERT_FILE is \"/dev/zero\", but should name a file that can be read: read /dev/zero: it is not a regular file", "USHER_WEBHOOK_TLS_KEY_FILE is"}},
		{"TLS with files that hold something else", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TLS_CERT_FILE="+empty, "USHER_WEBHOOK_TLS_KEY_FILE="+empty),
			[]string{"USHER_WEBHOOK_TLS_CERT_FILE and USHER_WEBHOOK_TLS_KEY_FILE should hold a certificate and its key in PEM"}},
		{"no schema", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_SCHEMA_FILE="+empty), []string{"USHER_WEBHOOK_SCHEMA_FILE"}},
		{"no schema and no receiver", with("USHER_WEBHOOK_FORWARD_URL=here", "USHER_WEBHOOK_SCHEMA_FILE="+empty), []string{"USHER_WEBHOOK_FORWARD_URL", "USHER_WEBHOOK_SCHEMA_FILE"}},
		{"algorithm", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_SIGNATURE_ALGORITHM=md5"), []string{`USHER_WEBHOOK_SIGNATURE_ALGORITHM is "md5", but should hold sha1, sha256 or sha512`}},
		{"numbers", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TRIES=0", "USHER_WEBHOOK_MAX_INFLIGHT=many", "USHER_WEBHOOK_DEDUP_WINDOW=-1s"),
			[]string{`USHER_WEBHOOK_TRIES is "0"`, `USHER_WEBHOOK_MAX_INFLIGHT is "many", but should hold a whole number`, "USHER_WEBHOOK_DEDUP_WINDOW"}},
		{"receiver without an address or platforms", []string{"USHER_WEBHOOK_RECEIVERS_0_NAME=crm"}, []string{"USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL is not set", "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS is not set"}},
		{"receiver with no platform in its list", []string{"USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://r", "USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=,"}, []string{`USHER_WEBHOOK_RECEIVERS_0_PLATFORMS is ","`}},
		{"platform claimed twice", two("USHER_WEBHOOK_RECEIVERS_1_PLATFORMS=docs,crm"),
			[]string{`USHER_WEBHOOK_RECEIVERS_1_PLATFORMS has "crm", which USHER_WEBHOOK_RECEIVERS_0_PLATFORMS has too`}},
		{"name used twice", two("USHER_WEBHOOK_RECEIVERS_0_NAME=x", "USHER_WEBHOOK_RECEIVERS_1_NAME=x"), []string{`USHER_WEBHOOK_RECEIVERS_1_NAME is "x", but should differ from the name of USHER_WEBHOOK_RECEIVERS_0_…`}},
		{"name of the main receiver", two("USHER_WEBHOOK_RECEIVERS_0_NAME=main"), []string{`USHER_WEBHOOK_RECEIVERS_0_NAME is "main", but should differ from the name of USHER_WEBHOOK_FORWARD_URL`}},
		{"name with a space", two("USHER_WEBHOOK_RECEIVERS_0_NAME=a b"), []string{`USHER_WEBHOOK_RECEIVERS_0_NAME is "a b"`}},
		{"receiver's own values", two("USHER_WEBHOOK_RECEIVERS_0_TIMEOUT=0s", "USHER_WEBHOOK_RECEIVERS_0_CONCURRENCY=0", "USHER_WEBHOOK_RECEIVERS_1_TIMEOUT=soon", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_SIGNING_KEY=t0psecret",
			"USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL=ftp://u:t0psecret@r"),
			[]string{`USHER_WEBHOOK_RECEIVERS_0_TIMEOUT is "0s"`, `USHER_WEBHOOK_RECEIVERS_0_CONCURRENCY is "0"`, `USHER_WEBHOOK_RECEIVERS_1_TIMEOUT is "soon"`, "USHER_WEBHOOK_RECEIVERS_1_FORWARD_SIGNING_KEY should hold whsec_", "USHER_WEBHOOK_RECEIVERS_1_FORWARD_URL holds something else"}},
		{"slip in a receiver", two("USHER_WEBHOOK_RECEIVERS_1_PLATFORM=x"), []string{"did you mean USHER_WEBHOOK_RECEIVERS_1_PLATFORMS?"}},
		{"inbox", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_INBOX=/x", "USHER_WEBHOOK_INBOX_PARK_AFTER=0s"),
			[]string{`USHER_WEBHOOK_INBOX can't be used: it begins with neither file: nor postgres://; it should hold file:/path`, "USHER_WEBHOOK_INBOX_PARK_AFTER"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Read(tc.env)
			if err == nil {
				t.Fatal("accepted")
			}
			lines := strings.Split(err.Error(), "\n")
			if len(lines) != len(tc.want) {
				t.Errorf("%d problems, want %d:\n%s", len(lines), len(tc.want), err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in:\n%s", want, err)
				}
			}
			if strings.Contains(err.Error(), "t0psecret") {
				t.Errorf("a secret shows:\n%s", err)
			}
		})
	}
}

func TestFine(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		env     []string
		unknown []string
	}{
		{"two receivers", two(), nil},
		{"its own platform twice", two("USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm,crm"), nil},
		{"Kubernetes, with a service that is called as a receiver", with("USHER_WEBHOOK_RECEIVERS_0_SERVICE_HOST=10.0.0.1", "USHER_WEBHOOK_RECEIVERS_0_PORT=tcp://10.0.0.1:8080", "USHER_WEBHOOK_RECEIVERS_0_PORT_80_TCP_ADDR=x"), nil},
		{"http on loopback", with("USHER_BASE_URL=http://127.0.0.1:1/prefix/"), nil},
		{"plain http on purpose", with("USHER_BASE_URL=http://billing", "USHER_ALLOW_PLAIN_HTTP=true"), nil},
		{"path of the gate", with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_PATH=/h%C3%B6kar/a-b_c~'(x)"), nil},
		{"key", with("USHER_LISTEN=0.0.0.0:8080", "USHER_KEY=sixteen-letters-"), nil},
		{"short key on loopback", with("USHER_KEY=k,l"), nil},
		{"insecure on purpose", with("USHER_LISTEN=:8080", "USHER_INSECURE=true"), nil},
		{"file", append(minimal[:2:2], "USHER_CLIENT_SECRET_FILE="+secret), nil},
		{"unix", with("USHER_LISTEN=unix:/run/usher.sock"), nil},
		{"proxy without a scheme", with("HTTPS_PROXY=proxy:3128"), nil},
		{"no admin port", with("USHER_ADMIN_LISTEN=off"), nil},
		{"stranger", with("USHER_FAVOURITE_COLOUR=blue", "USHER_URL=x"), []string{"USHER_FAVOURITE_COLOUR"}},
		{"Kubernetes", with("USHER_SERVICE_HOST=10.0.0.1", "USHER_SERVICE_PORT=8080", "USHER_SERVICE_PORT_HTTP=8080", "USHER_PORT=tcp://10.0.0.1:8080",
			"USHER_PORT_8080_TCP=tcp://10.0.0.1:8080", "USHER_PORT_8080_TCP_ADDR=10.0.0.1", "USHER_PORT_8080_TCP_PORT=8080", "USHER_PORT_8080_TCP_PROTO=tcp", "USHER_PORT_53_UDP=x",
			"USHER_WEBHOOK_SERVICE_HOST=10.0.0.2", "USHER_WEBHOOK_PORT=tcp://10.0.0.2:8090", "USHER_WEBHOOK_PORT_8090_TCP_ADDR=10.0.0.2"), nil},
		{"Kubernetes, with a service that is called as a further port", with("USHER_PORTS_0_SERVICE_HOST=10.0.0.1", "USHER_PORTS_0_PORT=tcp://10.0.0.1:8080", "USHER_PORTS_0_PORT_8080_TCP=tcp://10.0.0.1:8080"), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Read(tc.env)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.Unknown, tc.unknown) {
				t.Errorf("unknown: %q", s.Unknown)
			}
		})
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "17": 17, "2KiB": 2048, "3MiB": 3 << 20, "1 MiB": 1 << 20, "4GiB": 4 << 30, "99999GiB": -1, "": -1, "-1": -1, "1GB": -1, "1.5MiB": -1, "MiB": -1, "99999999999MiB": -1} {
		n, err := parseSize(text)
		if (err != nil) != (want < 0) || err == nil && n != want {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for base, want := range map[string]string{
		"https://billing.example.com":           "https://billing.example.com/graphql",
		"https://billing.example.com/":          "https://billing.example.com/graphql",
		"https://billing.example.com/a/b/":      "https://billing.example.com/a/b/graphql",
		"https://billing.example.com/a%2Fb":     "https://billing.example.com/a%2Fb/graphql",
		"https://billing.example.com:8443/x":    "https://billing.example.com:8443/x/graphql",
		"https://billing.example.com/graphql/v": "https://billing.example.com/graphql/v/graphql",
	} {
		o := outbound.Config{Base: baseURL(newReader(nil), base, false)}
		if got := o.Endpoint("/graphql"); got.String() != want || !strings.HasPrefix(got.RequestURI(), "/") {
			t.Errorf("%s: %s", base, got)
		}
	}
}

// Whatever a variable is called and holds, the result is a problem or settings.
func FuzzSettings(f *testing.F) {
	for _, kv := range []string{"USHER_LISTEN=unix:", "USHER_BASE_URL=https://[::1", "USHER_PORTS_0_LISTEN=:1", "USHER_WEBHOOK_RECEIVERS_0_=x", "==0"} {
		f.Add(kv)
	}
	f.Fuzz(func(t *testing.T, kv string) {
		if name, _, _ := strings.Cut(kv, "="); strings.HasSuffix(name, "_FILE") {
			return // would read the machine's files
		}
		s, err := Read(with("USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:1", kv))
		if (s == nil) == (err == nil) {
			t.Fatalf("%v, %v", s, err)
		}
	})
}

func TestReceivers(t *testing.T) {
	key := "whsec_a2V5"
	s, err := Read([]string{
		"USHER_WEBHOOK_FORWARD_URL=http://main", "USHER_WEBHOOK_FORWARD_SIGNING_KEY=" + key, "USHER_WEBHOOK_TIMEOUT=3s", "USHER_WEBHOOK_INBOX=file:x", "USHER_WEBHOOK_INBOX_CONCURRENCY=7",
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm, mail", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://crm/hook",
		"USHER_WEBHOOK_RECEIVERS_12_NAME=documents", "USHER_WEBHOOK_RECEIVERS_12_PLATFORMS=docs", "USHER_WEBHOOK_RECEIVERS_12_FORWARD_URL=https://docs",
		"USHER_WEBHOOK_RECEIVERS_12_FORWARD_SIGNING_KEY=whsec_b3RoZXI=", "USHER_WEBHOOK_RECEIVERS_12_TIMEOUT=1m", "USHER_WEBHOOK_RECEIVERS_12_CONCURRENCY=2",
	})
	if err != nil {
		t.Fatal(err)
	}
	w := &s.Webhook
	all := w.Receivers.All()
	if len(all) != 3 || len(s.Unknown) > 0 {
		t.Fatalf("%+v, %v", all, s.Unknown)
	}
	if c := all[0]; c.Name != "main" || c.URL.Host != "main" || c.ForwardSigningKey() != key || c.Timeout.String() != "3s" || c.Concurrency != 7 || len(c.Platforms) > 0 {
		t.Errorf("main: %+v", c)
	}
	if c := all[1]; c.Name != "0" || !slices.Equal(c.Platforms, []string{"crm", "mail"}) || c.ForwardSigningKey() != key || c.Timeout.String() != "3s" || c.Concurrency != 7 {
		t.Errorf("inherits: %+v", c)
	}
	if c := all[2]; c.Name != "documents" || c.URL.Scheme != "https" || c.ForwardSigningKey() != "whsec_b3RoZXI=" || c.Timeout.String() != "1m0s" || c.Concurrency != 2 {
		t.Errorf("its own: %+v", c)
	}
}

// What is a problem at the start does not take the place of a good secret later: a file that
// somebody writes a wrong one into would lock everybody out, or stop deliveries.
func TestASecretFileIsCheckedAtAChangeAsAtTheStart(t *testing.T) {
	const key, signing = "sixteen-letters-or-more", "whsec_a2V5"
	gate := two("USHER_ENTITLEMENTS_LISTEN=127.0.0.1:1", "USHER_WEBHOOK_INBOX=file:x")
	for _, tc := range []struct {
		name      string
		env       []string
		good, bad string
	}{
		{"USHER_KEY", minimal, key, "a,,b"},
		{"USHER_KEY", minimal, key, " white-space-at-its-end"},
		{"USHER_KEY", with("USHER_LISTEN=:8080", "USHER_PORTS_0_LISTEN=127.0.0.1:81"), key, "short"},
		{"USHER_PORTS_0_KEY", with("USHER_PORTS_0_LISTEN=127.0.0.1:81"), key, ","},
		{"USHER_ENTITLEMENTS_KEY", gate, key, "a,,b"},
		{"USHER_WEBHOOK_TOKEN", gate, key, ","},
		{"USHER_ADMIN_TOKEN", gate, key, "ana:\x01"},
		{"USHER_ADMIN_TOKEN", append(slices.Clone(gate), "USHER_ADMIN_LISTEN=:9095"), key, "ana:short"},
		{"USHER_ENTITLEMENTS_KEY", append(slices.Clone(gate), "USHER_ENTITLEMENTS_LISTEN=:8070"), key, "short"},
		{"USHER_WEBHOOK_FORWARD_SIGNING_KEY", gate, signing, "half a secr"},
		{"USHER_WEBHOOK_RECEIVERS_1_FORWARD_SIGNING_KEY", gate, signing, "whsec_"},
		{"USHER_WEBHOOK_FORWARD_SIGNING_KEY", gate, signing + ",whsec_bmV3", signing + ","},
		{"USHER_WEBHOOK_FORWARD_SIGNING_KEY", gate, signing + ", whsec_bmV3", signing + ",a2V5"},
	} {
		t.Run(tc.name+"="+tc.bad, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "secret")
				write := func(content string) {
					if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
					time.Sleep(5 * time.Second)
				}
				write(tc.bad)
				env := append(slices.Clone(tc.env), tc.name+"_FILE="+path)
				if _, err := Read(env); err == nil {
					t.Fatal("it is no problem at the start")
				}
				write(tc.good)
				s, err := Read(env)
				if err != nil {
					t.Fatal(err)
				}
				go secret.Watch(t.Context(), slog.New(slog.DiscardHandler), s.Watched...)
				write(tc.bad)
				if got := s.Watched[0].Get(); got != tc.good {
					t.Errorf("it is now %q", got)
				}
				write(tc.good + "more")
				if got := s.Watched[0].Get(); got != tc.good+"more" {
					t.Errorf("after a good one it is %q", got)
				}
			})
		})
	}
}

// A command that calls a running usher needs only the admin settings: others may be missing or wrong.
func TestReadAdmin(t *testing.T) {
	for _, tc := range []struct {
		name, listen, problem string
		env                   []string
	}{
		{"nothing set", "127.0.0.1:9095", "", nil},
		{"off", "", "USHER_ADMIN_LISTEN is off", []string{"USHER_ADMIN_LISTEN=off"}},
		{"beyond loopback, as usher itself would not start", ":9095", "", []string{"USHER_ADMIN_LISTEN=:9095", "USHER_ADMIN_TOKEN=short"}},
		{"others are wrong", "127.0.0.1:9095", "", []string{"USHER_BASE_URL=nowhere", "USHER_LOG_LEVEL=loud", "USHER_SHUTDOWN_GRACE=soon"}},
		{"no address", "", `USHER_ADMIN_LISTEN is "9095"`, []string{"USHER_ADMIN_LISTEN=9095"}},
		{"no token", "", "USHER_ADMIN_TOKEN_FILE is", []string{"USHER_ADMIN_TOKEN_FILE=/nowhere"}},
		{"bad token", "", "USHER_ADMIN_TOKEN has white space", []string{"USHER_ADMIN_TOKEN=t0psecret "}},
	} {
		a, err := ReadAdmin(tc.env)
		switch {
		case tc.problem == "" && (err != nil || a.Listen != tc.listen):
			t.Errorf("%s: %+v, %v", tc.name, a, err)
		case tc.problem != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.problem) || strings.Contains(err.Error(), "t0psecret")):
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if got := AdminListen([]string{"USHER_ADMIN_LISTEN=unix:/x", "USHER_ADMIN_TOKEN_FILE=/nowhere"}); got != "unix:/x" {
		t.Error(got)
	}
	if got := AdminListen([]string{"USHER_ADMIN_LISTEN="}); got != "127.0.0.1:9095" {
		t.Error(got)
	}
}

func TestInboxSettings(t *testing.T) {
	for _, c := range []struct {
		env   string // separated by spaces
		fault string // what the problem says; empty: none
	}{
		{"USHER_WEBHOOK_INBOX=file:/tmp/inbox.db", ""},
		{"USHER_WEBHOOK_INBOX=file:", "it has no path"},
		{"USHER_WEBHOOK_INBOX=postgres://u@a,b:5433/usher?target_session_attrs=read-write&sslmode=verify-full&schema=usher_2", ""},
		{"USHER_WEBHOOK_INBOX=postgresql://u@[::1]:5432/usher USHER_WEBHOOK_INBOX_PASSWORD=hush", ""},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher", ""},
		{"USHER_WEBHOOK_INBOX=redis://u:hush@a", "USHER_WEBHOOK_INBOX can't be used: it begins with neither file: nor postgres://"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a:port/usher", "USHER_WEBHOOK_INBOX can't be used"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a:99999999/usher", "USHER_WEBHOOK_INBOX can't be used"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher?sslmode=perhaps", "sslmode is invalid"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher?sslrootcert=/nowhere&sslmode=verify-full", "USHER_WEBHOOK_INBOX can't be used"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher?schema=a.b", "its schema should be a name"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher?schema=", "its schema should be a name"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher?replicas=3", `it has the parameter "replicas", which usher does not know`},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher?pool_max_conns=3", "pool_max_conns, which usher sets itself"},
		{"USHER_WEBHOOK_INBOX=postgres://u:hush@a/usher USHER_WEBHOOK_INBOX_PASSWORD=hush", "only one of them should be set"},
		{"USHER_WEBHOOK_INBOX=file:/tmp/inbox.db USHER_WEBHOOK_INBOX_PASSWORD=hush", "is only for a database"},
	} {
		env := append(strings.Fields(c.env), "USHER_BASE_URL=https://billing.example", "USHER_CLIENT_ID=app", "USHER_CLIENT_SECRET=s",
			"USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:3000")
		_, err := Read(env)
		switch {
		case c.fault == "" && err != nil:
			t.Errorf("%s: %v", c.env, err)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "hush")):
			t.Errorf("%s: %v", c.env, err)
		}
	}
}

// A value that may contain a password is not shown, even in the wrong variable.
func TestNoPasswordInProblems(t *testing.T) {
	for _, kv := range []string{
		"USHER_WEBHOOK_INBOX=postgress://u:hush@h", "USHER_WEBHOOK_INBOX=Postgres://u:hush@h/d?x=1", "USHER_WEBHOOK_INBOX=u:hush@h",
		"USHER_BASE_URL=u:hush@h", "USHER_CLIENT_SECRET_FILE=hush",
		"USHER_WEBHOOK_TLS_KEY_FILE=-----BEGIN PRIVATE KEY-----\nhush",
		"HTTPS_PROXY=http://u:hush@proxy:port", "USHER_WEBHOOK_SIGNATURE_ALGORITHM=whsec_hush", "USHER_WEBHOOK_SIGNATURE_HEADER=-----BEGIN hush",
	} {
		env := []string{"USHER_CLIENT_ID=app", "USHER_WEBHOOK_FORWARD_URL=http://127.0.0.1:3000"}
		if strings.HasPrefix(kv, "USHER_WEBHOOK_TLS_KEY_FILE") {
			env = append(env, "USHER_WEBHOOK_TLS_CERT_FILE=/none")
		}
		if !strings.HasPrefix(kv, "USHER_BASE_URL") {
			env = append(env, "USHER_BASE_URL=https://billing.example")
		}
		if !strings.HasPrefix(kv, "USHER_CLIENT_SECRET") {
			env = append(env, "USHER_CLIENT_SECRET=s")
		}
		if _, err := Read(append(env, kv)); err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", kv, err)
		}
	}
}

// A receiver's answer may repeat any secret of the settings, and more people see it than know these.
func TestReceiversHideAllSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("t0ken-in-a-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Read(with("USHER_WEBHOOK_FORWARD_URL=http://r", "USHER_WEBHOOK_TOKEN_FILE="+file, "USHER_KEY=the-key,an0ther",
		"USHER_WEBHOOK_RECEIVERS_0_PLATFORMS=crm", "USHER_WEBHOOK_RECEIVERS_0_FORWARD_URL=http://r", "USHER_ADMIN_TOKEN=ana:adm1n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range s.Webhook.Receivers.All() {
		hidden := secret.Words(to.Secrets)
		for _, word := range []string{"t0psecret", "t0ken-in-a-file", "the-key", "an0ther", "adm1n"} {
			if !slices.Contains(hidden, word) {
				t.Errorf("receiver %s may show %s", to.Name, word)
			}
		}
	}
}
