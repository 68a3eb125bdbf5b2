package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// The load and the service that is called speak just as much HTTP/1.1 as it takes:
// they should leave the machine to what is measured.

// readHead reads a request's or an answer's header: each has its first line, then
// each field with its name in lower case. What it is given is gone with the next one.
func readHead(r *bufio.Reader, first func(line []byte), field func(name, value []byte)) error {
	for n := 0; ; n++ {
		line, err := r.ReadSlice('\n')
		if err != nil {
			if n > 0 && err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if n == 0 {
			first(line)
			continue
		}
		if len(line) == 0 {
			return nil
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
	chunked := false
	err = readHead(r, func(line []byte) {
		_, rest, _ := strings.Cut(string(line), " ")
		code, _, _ := strings.Cut(rest, " ")
		status, _ = strconv.Atoi(code)
	}, func(name, value []byte) {
		switch string(name) {
		case "content-length":
			length, _ = strconv.Atoi(string(value))
		case "transfer-encoding":
			chunked = true
		}
	})
	switch {
	case err != nil:
		return 0, err
	case status == http.StatusNoContent || status == http.StatusNotModified:
		return status, nil
	case chunked:
		return status, discardChunks(r)
	case length < 0:
		return 0, errors.New("an answer without a length")
	}
	_, err = r.Discard(length)
	return status, err
}

func discardChunks(r *bufio.Reader) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if _, err := r.Discard(int(size) + 2); err != nil { // with the line's end; no trailers here
			return err
		}
		if size == 0 {
			return nil
		}
	}
}
