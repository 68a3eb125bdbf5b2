package wire

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"
)

// The server's farewell arrives together with the answer, whole or in part. (TLS 1.2 then returns
// both from one read: data, and an end or a wait.)
func TestFarewellWithTheAnswer(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server, client := certificates(t)
		server.MaxVersion = version
		farewell := 0 // bytes
		for held := 0; held == 0 || held < farewell; held++ {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			count := serveOn(t, l, func(raw net.Conn, _ *bufio.Reader, _ int) {
				below := &gate{Conn: raw}
				conn := tls.Server(below, server)
				readCall(bufio.NewReader(conn))
				below.held = new(bytes.Buffer)
				io.WriteString(conn, okAnswer)
				answer := below.held.Len()
				conn.CloseWrite()
				raw.SetWriteDeadline(time.Time{}) // CloseWrite has set one
				farewell = below.held.Len() - answer
				all := below.held.Bytes()
				raw.Write(all[:len(all)-held])
				if held%2 == 1 {
					raw.(*net.TCPConn).CloseWrite() // cut off in the middle of it
				}
				<-done
			})
			cl := newClient(t, func(c *Config) { c.TLS = client })
			for range 3 {
				if status, body, err := call(cl, request(t, t.Context(), "GET", "https://"+l.Addr().String(), nil)); status != 200 || body != "ok" || err != nil {
					t.Errorf("%s, %d bytes of the farewell held back: %d %q %v", tls.VersionName(version), held, status, body, err)
				}
			}
			if count() != 3 {
				t.Errorf("%d connections", count())
			}
			close(done)
		}
	}
}
