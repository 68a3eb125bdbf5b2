package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// probe is a request sent as it stands, and what is to come of it.
//
// In raw, {path}, {host}, {auth}, {body} and {length} stand for what a good request
// to the port has; {own} for a credential that is the caller's own affair.
type probe struct {
	name string
	raw  string

	// The answers' status codes on each port, in order; "closed" when the connection
	// is closed after them. Where a port is not asked it is empty.
	local, gate, admin string
	reach              int // how many requests reach the service, or the receiver
}

// request puts a head and a body together.
func request(body string, head ...string) string {
	return strings.Join(head, "\r\n") + "\r\n\r\n" + body
}

// good is a whole request with these headers besides.
func good(headers ...string) string {
	head := append([]string{"POST {path} HTTP/1.1", "Host: {host}", "{auth}", "Content-Type: application/json"}, headers...)
	return request("{body}", append(head, "Content-Length: {length}")...)
}

// framed is a request with these headers, in place of Content-Length, and this body.
func framed(body string, headers ...string) string {
	head := append([]string{"POST {path} HTTP/1.1", "Host: {host}", "{auth}", "Content-Type: application/json"}, headers...)
	return request(body, head...)
}

// smuggled is what must never be taken for a request.
const smuggled = "POST {path} HTTP/1.1\r\nHost: {host}\r\n{auth}\r\nContent-Type: application/json\r\nX-Smuggled: yes\r\nContent-Length: {length}\r\n\r\n{body}"

const (
	fine    = "200"
	refused = "400 closed"
)

// same is a probe with the same outcome on every port.
func same(name, raw, outcome string, reach int) probe {
	return probe{name, raw, outcome, outcome, outcome, reach}
}

func bad(name, raw string) probe { return same(name, raw, refused, 0) }

// controls show that the table can tell: these are good requests.
func controls() []probe {
	return []probe{
		same("a plain request", good(), fine, 1),
		same("two requests in one write", good()+good(), "200 200", 2),
		same("chunked", framed("{chunk}0\r\n\r\n", "Transfer-Encoding: chunked"), fine, 1),
		same("chunked, two requests in one write", framed("{chunk}0\r\n\r\n", "Transfer-Encoding: chunked")+good(), "200 200", 2),
		same("`Transfer-Encoding: cHuNkEd`", framed("{chunk}0\r\n\r\n", "transfer-encoding: cHuNkEd"), fine, 1),
		same("a second request within the body's length", framed("{body}"+strings.Repeat(" ", 100), "Content-Length: {length+100}"), fine, 1),
		same("an empty line after a POST", good()+"\r\n", fine, 1),
		same("`Expect: 100-continue`", good("Expect: 100-continue"), fine, 1),
	}
}

func framingProbes() []probe {
	chunked := "{chunk}0\r\n\r\n" + smuggled
	te := "Transfer-Encoding: chunked"
	return []probe{
		bad("`Content-Length` then `Transfer-Encoding`", framed(chunked, "Content-Length: 4", te)),
		bad("`Transfer-Encoding` then `Content-Length`", framed(chunked, te, "Content-Length: 4")),
		bad("both, and the length is right", framed("0\r\n\r\n", "Content-Length: 5", te)),
		same("both, in the second of two requests", good()+framed(chunked, "Content-Length: 4", te), "200 400 closed", 1),
		bad("chunked in HTTP/1.0", request(chunked, "POST {path} HTTP/1.0", "Host: {host}", "{auth}", te)),
		bad("`Content-Length` twice, equal", framed("{body}", "Content-Length: {length}", "Content-Length: {length}")),
		bad("`Content-Length` twice, differing", framed("{body}"+smuggled, "Content-Length: {length}", "Content-Length: 999")),
		bad("`Content-Length: n, n`", framed("{body}", "Content-Length: {length}, {length}")),
		bad("`Content-Length: +n`", framed("{body}", "Content-Length: +{length}")),
		bad("`Content-Length: -1`", framed("{body}", "Content-Length: -1")),
		bad("`Content-Length: 0x10`", framed("{body}", "Content-Length: 0x10")),
		bad("`Content-Length: 1_0`", framed("{body}", "Content-Length: 1_0")),
		bad("`Content-Length:` (empty)", framed("{body}", "Content-Length:")),
		bad("`Content-Length: 99999999999999999999`", framed("{body}", "Content-Length: 99999999999999999999")),
		same("`Transfer-Encoding` twice", framed(chunked, te, te), "501 closed", 0),
		same("`Transfer-Encoding: gzip, chunked`", framed(chunked, "Transfer-Encoding: gzip, chunked"), "501 closed", 0),
		same("`Transfer-Encoding: chunked, identity`", framed(chunked, "Transfer-Encoding: chunked, identity"), "501 closed", 0),
		bad("`Transfer-Encoding: identity`", framed("{body}", "Transfer-Encoding: identity", "Content-Length: {length}")),
		same("`Transfer-Encoding: xchunked`", framed(chunked, "Transfer-Encoding: xchunked"), "501 closed", 0),
		same("`Transfer-Encoding: \"chunked\"`", framed(chunked, `Transfer-Encoding: "chunked"`), "501 closed", 0),
		bad("`Transfer-Encoding: \\x0bchunked`", framed(chunked, "Transfer-Encoding: \x0bchunked")),
		bad("`Transfer-Encoding : chunked` (space before the colon)", framed(chunked, "Transfer-Encoding : chunked", "Content-Length: 4")),
		bad("`Transfer-Encoding:` folded onto the next line", framed(chunked, "Transfer-Encoding:", " chunked", "Content-Length: 4")),
		bad("a chunk size that ends with a bare LF", framed("5\n12345\r\n0\r\n\r\n", te)),
		bad("a chunk extension with a bare LF", framed("5;x\n12345\r\n0\r\n\r\n", te)),
		bad("a chunk extension with a bare CR", framed("5;x\r12345\r\n0\r\n\r\n", te)),
		bad("a chunk size with a sign", framed("+5\r\n12345\r\n0\r\n\r\n", te)),
		bad("a chunk size of 17 digits", framed("10000000000000005\r\n12345\r\n0\r\n\r\n", te)),
		bad("a chunk longer than its size", framed("5\r\n123456\r\n0\r\n\r\n", te)),
	}
}

func headProbes() []probe {
	return []probe{
		bad("a folded header", good("X-Folded: one", " two")),
		bad("bare LF throughout", strings.ReplaceAll(good(), "\r\n", "\n")),
		bad("bare LF after one header", strings.Replace(good("X-Odd: 1"), "X-Odd: 1\r\n", "X-Odd: 1\n", 1)),
		bad("bare LF at the head's end, a request after it", strings.Replace(good(), "\r\n\r\n", "\r\n\n", 1)+smuggled),
		bad("bare CR in a value", good("X-Odd: 1\rContent-Length: 0")),
		bad("NUL in a value", good("X-Odd: a\x00b")),
		bad("NUL in a name", good("X-O\x00dd: ab")),
		bad("space before the colon", good("X-Odd : 1")),
		bad("space in a name", good("X Odd: 1")),
		bad("a header without a colon", good("X-Odd")),
		bad("a header without a name", good(": 1")),
		bad("no Host", request("{body}", "POST {path} HTTP/1.1", "{auth}", "Content-Length: {length}")),
		bad("two Hosts", good("Host: {host}")),
		bad("two Hosts, differing", good("Host: evil.example")),
		bad("a Host with a slash", request("{body}", "POST {path} HTTP/1.1", "Host: a/b", "{auth}", "Content-Length: {length}")),
		{"another Host", request("{body}", "POST {path} HTTP/1.1", "Host: evil.example", "{auth}", "Content-Length: {length}"), "421", fine, "421", 0},
		{"absolute form, another host", request("{body}", "POST http://evil.example{path} HTTP/1.1", "Host: {host}", "{auth}", "Content-Type: application/json", "Content-Length: {length}"), "421", fine, "421", 0},
		same("absolute form, this host", request("{body}", "POST http://{host}{path} HTTP/1.1", "Host: evil.example", "{auth}", "Content-Type: application/json", "Content-Length: {length}"), fine, 1),
		same("`CONNECT`, a request in its body", request(smuggled, "CONNECT evil.example:443 HTTP/1.1", "Host: evil.example:443", "{auth}"), "405 closed", 0),
		same("`CONNECT` of the path, a request in its body", request(smuggled, "CONNECT {path} HTTP/1.1", "Host: {host}", "{auth}", "Content-Length: 3"), "405 closed", 0),
		same("`TRACE`", request("", "TRACE {path} HTTP/1.1", "Host: {host}", "{auth}"), "405 closed", 0),
		same("`OPTIONS *`", request("", "OPTIONS * HTTP/1.1", "Host: {host}", "{auth}"), "404", 0),
		same("`Upgrade: h2c`", good("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"), fine, 1),
		same("`Upgrade: websocket`", good("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"), fine, 1),
		bad("the HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		bad("HTTP/0.9", "GET {path}\r\n\r\n"),
		bad("HTTP/1.2", strings.Replace(good(), "HTTP/1.1", "HTTP/1.2", 1)),
		same("`Expect: something-else`", good("Expect: something-else"), "417 closed", 0),
		same("2 MB of headers", good("X-Large: "+strings.Repeat("x", 2<<20)), "431 closed", 0),
		bad("5,000 headers", good(manyHeaders(5000)...)),
	}
}

func manyHeaders(n int) (headers []string) {
	for i := range n {
		headers = append(headers, fmt.Sprintf("X-%d: 1", i))
	}
	return headers
}

// credentialProbes are about what a caller can do to credentials: its own, which
// must not leave, and the token, which must not be lost on the way.
func credentialProbes() []probe {
	probes := []probe{
		{"path with a dot segment", strings.Replace(good(), "{path}", "{path}/../x", 1), "404", "404", "404", 0},
		{"path, escaped", strings.Replace(good(), "{path}", "/%67raphql", 1), "404", "", "", 0},
		{"path with a slash after it", strings.Replace(good(), "{path}", "{path}/", 1), "404", "401", "404", 0},
		{"path with two slashes", strings.Replace(good(), "{path}", "/{path}", 1), "404", "404", "404", 0},
		{"a credential in a trailer", framed("{chunk}0\r\nAuthorization: Bearer {own}\r\nX-Usher-Key: {own}\r\n\r\n",
			"Transfer-Encoding: chunked", "Trailer: Authorization, X-Usher-Key"), fine, fine, fine, 1},
		{"the caller's own `Authorization`", good("Authorization: Bearer {own}"), fine, fine, "", 1},
		{"the caller's own `Authorization`, twice", good("Authorization: Basic {own}", "authorization: Bearer {own}"), fine, fine, "", 1},
	}
	for _, named := range []string{
		"Connection: Authorization", "connection: AUTHORIZATION", "Connection: keep-alive, authorization",
		"Connection: keep-alive\r\nConnection: Authorization", "Connection: ,,\tauthorization\t,", "Connection: Authorization, Authorization",
		"Proxy-Connection: Authorization", "Connection: X-Usher-Key, X-Webhook-Token", "Connection: Host, Content-Length",
		"Connection: webhook-id, webhook-signature",
	} {
		name := "`" + strings.NewReplacer("\r\n", "`, `", "\t", "\\t").Replace(named) + "`"
		probes = append(probes, same(name, good(named), fine, 1))
	}
	both := []string{"Proxy_Authorization", "Proxy-Authorization", "X_Forwarded_For", "X-Forwarded_For", "x_real-ip", "Forwarded"}
	for _, name := range append(both, "X_Usher_Key", "x-usher_key") {
		probes = append(probes, probe{"`" + name + "` with a credential", good(name + ": {own}"), fine, "", "", 1})
	}
	for _, name := range append(both, "X_Webhook_Token", "X-Webhook_token", "webhook_id", "Webhook_Signature", "webhook-timestamp") {
		probes = append(probes, probe{"`" + name + "` with a credential, at the gate", good(name + ": {own}"), "", fine, "", 1})
	}
	for _, lookAlike := range []string{"Transfer_Encoding: chunked", "Content_Length: 3", "Transfer-Encoding_: chunked"} {
		probes = append(probes, same("`"+lookAlike+"`", good(lookAlike), fine, 1))
	}
	return probes
}

const root = "../.."

// docs/evidence.md says how many probes there are of each kind.
func TestProbesAreCounted(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/evidence.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups() {
		if row := fmt.Sprintf("\n| %d ", len(g.probes)); !strings.Contains(string(page), row) {
			t.Errorf("docs/evidence.md has no row for %d probes: %s", len(g.probes), g.title)
		}
	}
}
