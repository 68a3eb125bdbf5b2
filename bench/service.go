package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// serviceRole is the first argument with which this program is the billing service.
const serviceRole = "service"

// sizes are those of the answers, as a call's query names them.
var sizes = []int{1 << 10, 100 << 10}

// target is what a call asks for: an answer of this size.
func target(size int) string { return "/graphql?" + strconv.Itoa(size) }

// serveService answers calls that carry a token, and gives that out. It speaks just as much HTTP as that takes: the
// machine should be left to what is measured.
func serveService(address, token string) error {
	grant, err := json.Marshal(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 7200})
	if err != nil {
		return err
	}
	answers := map[string][]byte{"/oauth/token": answerOf(200, string(grant))}
	for _, n := range sizes {
		answers[target(n)] = answerOf(200, `{"data":"`+strings.Repeat("x", n-len(`{"data":""}`))+`"}`)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go converse(conn, answers, "Bearer "+token)
	}
}

func answerOf(status int, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nDate: %s\r\nContent-Length: %d\r\n\r\n%s",
		status, http.StatusText(status), time.Now().UTC().Format(http.TimeFormat), len(body), body)
}

func converse(conn net.Conn, answers map[string][]byte, authorization string) {
	defer conn.Close()
	unauthorized := answerOf(http.StatusUnauthorized, "")
	r := bufio.NewReaderSize(conn, 8<<10)
	for {
		length, authorized := 0, false
		line, err := readHead(r, func(name, value []byte) {
			switch string(name) {
			case "content-length":
				length, _ = strconv.Atoi(string(value))
			case "authorization":
				authorized = string(value) == authorization
			}
		})
		if err != nil {
			return
		}
		if _, err := r.Discard(length); err != nil {
			return
		}
		answer := answers[strings.Fields(line + " -")[1]]
		if answer == nil || strings.Contains(line, "/graphql") && !authorized {
			answer = unauthorized
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

// readHead reads a request's or an answer's header: it returns the first line, and calls field for each field, with
// its name in lower case. The bytes are gone with the next one.
func readHead(r *bufio.Reader, field func(name, value []byte)) (first string, err error) {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first == "" {
			first = string(line)
			continue
		}
		if len(line) == 0 {
			return first, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		for i, c := range name {
			if 'A' <= c && c <= 'Z' {
				name[i] = c + 'a' - 'A'
			}
		}
		field(name, bytes.TrimSpace(value))
	}
}

// readAnswer reads one answer to its end.
func readAnswer(r *bufio.Reader) (status int, err error) {
	length := -1
	line, err := readHead(r, func(name, value []byte) {
		if string(name) == "content-length" {
			length, _ = strconv.Atoi(string(value))
		}
	})
	switch {
	case err == io.EOF:
		return 0, io.ErrUnexpectedEOF
	case err != nil:
		return 0, err
	case length < 0:
		return 0, errors.New("an answer without a length")
	}
	status, _ = strconv.Atoi(strings.Fields(line + " - -")[1])
	_, err = r.Discard(length)
	return status, err
}
