package e2e

import (
	"fmt"
	"strings"
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
		same("chunked, and nothing is read after it", framed("{chunk}0\r\n\r\n", "transfer-encoding: cHuNkEd")+smuggled, "200 closed", 1),
		same("a second request within the body's length", framed("{body}"+strings.Repeat(" ", 100), "Content-Length: {length+100}"), fine, 1),
		same("an empty line after a POST", good()+"\r\n", fine, 1),
		same("`Expect: 100-continue`", good("Expect: 100-continue"), fine, 1),
	}
}

// framingProbes are some of those that guard's own test knows.
func framingProbes() []probe {
	const te, end = "Transfer-Encoding: chunked", "0\r\n\r\n"
	last := fine + " closed"
	return []probe{
		same("`Content-Length` and `Transfer-Encoding`", framed("{chunk}"+end+smuggled, "Content-Length: {length}", te), last, 1),
		{"the same in the second of two requests", good() + framed("{chunk}"+end+smuggled, "Content-Length: {length}", te), "200 " + last, "200 " + last, "", 2},
		same("chunked in HTTP/1.0", request("{body}"+smuggled, "POST {path} HTTP/1.0", "Host: {host}", "{auth}", "Content-Type: application/json", "Connection: keep-alive", te, "Content-Length: {length}"), last, 1),
		bad("`Content-Length` twice, differing", framed("{body}"+smuggled, "Content-Length: {length}", "Content-Length: 999")),
		same("`Transfer-Encoding: gzip, chunked`", framed("{chunk}"+end+smuggled, "Transfer-Encoding: gzip, chunked"), "501 closed", 0),
		bad("a chunk longer than its size", framed("5\r\n123456\r\n"+end+smuggled, te)),
	}
}

func headProbes() []probe {
	return []probe{
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
		{"the HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "421 closed", "404 closed", "421 closed", 0},
		bad("HTTP/0.9", "GET {path}\r\n\r\n"),
		same("`Expect: something-else`", good("Expect: something-else"), "417 closed", 0),
		same("2 MB of headers", good("X-Large: "+strings.Repeat("x", 2<<20)), "431 closed", 0),
		same("5,000 headers", good(manyHeaders(5000)...), "431 closed", 0),
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
			"Transfer-Encoding: chunked", "Trailer: Authorization, X-Usher-Key"), "200 closed", "200 closed", "200 closed", 1},
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
