package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The two ways to reach the service.
const (
	plain = "plain HTTP/1.1"
	tls1  = "TLS, HTTP/1.1"
)

// service is the billing service that the outbound calls go to: it hands out one
// token, and answers a call that carries it with as many bytes as its query says.
type service struct {
	authorization []byte // that a call must carry
	grant         []byte // the whole answer of the token endpoint
	answers       map[string][]byte
}

// sizes are those of the answers, as a call's query names them.
var sizes = []int{1 << 10, 100 << 10}

// target is what a call asks for: an answer of this size.
func target(size int) string { return "/graphql?" + strconv.Itoa(size) }

// openTarget is the same for those who have no token: nobody is in between.
func openTarget(size int) string { return "/open?" + strconv.Itoa(size) }

func newService(token string) *service {
	grant, err := json.Marshal(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 7200})
	if err != nil { // strings and numbers always marshal
		panic(err)
	}
	s := &service{
		authorization: []byte("Bearer " + token),
		grant:         answerOf(200, grant),
		answers:       make(map[string][]byte),
	}
	for _, n := range sizes {
		s.answers[strconv.Itoa(n)] = answerOf(200, payloadOf(n))
	}
	return s
}

func payloadOf(n int) []byte {
	return fmt.Appendf(nil, `{"data":"%s"}`, strings.Repeat("x", n-len(`{"data":""}`)))
}

func answerOf(status int, body []byte) []byte {
	return fmt.Appendf(nil,
		"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nDate: %s\r\nContent-Length: %d\r\n\r\n%s",
		status, http.StatusText(status), time.Now().UTC().Format(http.TimeFormat), len(body), body)
}

// serve answers on l until it is closed.
func (s *service) serve(l net.Listener, way string, cert tls.Certificate) error {
	if way == tls1 {
		l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"http/1.1"}})
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go s.converse(conn)
	}
}

func (s *service) converse(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 8<<10)
	for {
		var target string
		var authorized bool
		length := 0
		err := readHead(r, func(line []byte) {
			_, rest, _ := bytes.Cut(line, []byte(" "))
			path, _, _ := bytes.Cut(rest, []byte(" "))
			target = string(path)
		}, func(name, value []byte) {
			switch string(name) {
			case "content-length":
				length, _ = strconv.Atoi(string(value))
			case "authorization":
				authorized = bytes.Equal(value, s.authorization)
			}
		})
		if err != nil {
			return
		}
		if _, err := r.Discard(length); err != nil {
			return
		}
		if _, err := conn.Write(s.answer(target, authorized)); err != nil {
			return
		}
	}
}

var (
	refusal  = answerOf(http.StatusUnauthorized, nil)
	notFound = answerOf(http.StatusNotFound, nil)
)

func (s *service) answer(target string, authorized bool) []byte {
	path, query, _ := strings.Cut(target, "?")
	switch answer := s.answers[query]; {
	case path == "/oauth/token":
		return s.grant
	case answer != nil && path == "/open":
		return answer
	case answer == nil || path != "/graphql":
		return notFound
	case !authorized:
		return refusal
	default:
		return answer
	}
}
