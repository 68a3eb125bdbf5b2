package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
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

// readAnswer reads one answer to its end. All have a length here.
func readAnswer(r *bufio.Reader) (status int, err error) {
	length := -1
	err = readHead(r, func(line []byte) {
		_, rest, _ := strings.Cut(string(line), " ")
		code, _, _ := strings.Cut(rest, " ")
		status, _ = strconv.Atoi(code)
	}, func(name, value []byte) {
		if string(name) == "content-length" {
			length, _ = strconv.Atoi(string(value))
		}
	})
	if err == nil && length < 0 {
		err = errors.New("an answer without a length")
	}
	if err != nil {
		return 0, err
	}
	_, err = r.Discard(length)
	return status, err
}
