// Package secret holds values that must never be shown: the passwords, keys and tokens in the settings. A Value comes
// from a variable, or from a file that is read again when its content changes. It prints as [redacted].
package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

const (
	redacted = "[redacted]"

	// pollEvery is how often Watch compares the content of the files. Times and inodes are not enough: a rewritten
	// file may keep both.
	pollEvery = 500 * time.Millisecond
)

// Value is one secret. A nil *Value is a secret that is not set.
type Value struct {
	current atomic.Pointer[string]
	path    string // of its file, or empty

	// Set before Watch begins.
	require  []func(string) error // check a new content
	onChange []func()

	// Used by Watch only:
	candidate string // the content that it read last
	complaint string // the last problem that it logged
}

// New returns a secret with a fixed value.
func New(value string) *Value {
	v := new(Value)
	v.current.Store(&value)
	return v
}

// FromFile returns the secret in a file, without the trailing newline.
func FromFile(path string) (*Value, error) {
	data, err := ReadFile(path)
	value, err := content(path, data, err)
	if err != nil {
		return nil, err
	}
	v := New(value)
	v.path, v.candidate = path, value
	return v, nil
}

// Get returns the current value, or the empty string if v is nil.
func (v *Value) Get() string {
	if v == nil {
		return ""
	}
	return *v.current.Load()
}

// Getter returns the method Get, or nil if v is nil: configurations take a nil func as a secret that is not set.
func (v *Value) Getter() func() string {
	if v == nil {
		return nil
	}
	return v.Get
}

// Path returns the file that the secret comes from, or the empty string.
func (v *Value) Path() string {
	if v == nil {
		return ""
	}
	return v.path
}

// Require adds a check for a new content of the file. If it returns an error, the last good
// value stays. The error must not contain the value. Call Require before Watch.
func (v *Value) Require(check func(string) error) { v.require = append(v.require, check) }

// OnChange calls f after each change of the value, on Watch's goroutine. Call OnChange before Watch.
func (v *Value) OnChange(f func()) { v.onChange = append(v.onChange, f) }

// String, GoString, LogValue and MarshalText keep the value out of everything that prints v.
func (v *Value) String() string               { return redacted }
func (v *Value) GoString() string             { return redacted }
func (v *Value) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (v *Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Watch reads the files of the values again and again until ctx ends, and uses new values. If a
// file cannot be read or is empty, the last good value stays.
func Watch(ctx context.Context, log *slog.Logger, values ...*Value) {
	uses := make(chan func())
	go func() { // not waited for: on a network disk that is gone a read never ends
		for {
			for _, v := range values {
				// A pipe (from a shell's process substitution) can be read only once.
				if info, err := os.Stat(v.Path()); v.Path() == "" || err == nil && info.Mode()&os.ModeNamedPipe != 0 {
					continue
				}
				data, err := ReadRegular(v.path)
				select {
				case <-ctx.Done():
					return
				case uses <- func() { v.use(data, err, log) }:
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pollEvery):
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case use := <-uses:
			use()
		}
	}
}

// use uses what was read once. It uses a new content only if it is the same twice in a row: a file
// that is being rewritten in place may be half-written.
func (v *Value) use(data []byte, err error, log *slog.Logger) {
	value, err := content(v.path, data, err)
	for _, check := range v.require {
		if err == nil {
			err = check(value)
		}
	}
	if err != nil {
		if complaint := err.Error(); complaint != v.complaint {
			v.complaint = complaint
			log.Warn("cannot use the secret file, usher keeps the last good value", "file", v.path, "err", err)
		}
		v.candidate = ""
		return
	}
	v.complaint = ""
	settled := value == v.candidate
	v.candidate = value
	if !settled || value == v.Get() {
		return
	}
	v.current.Store(&value)
	log.Info("secret file changed, new value in use", "file", v.path)
	for _, f := range v.onChange {
		f()
	}
}

// content returns the secret in what was read from a file.
func content(path string, data []byte, err error) (string, error) {
	data = bytes.TrimRight(data, "\r\n")
	if err == nil && len(bytes.TrimSpace(data)) == 0 {
		err = fmt.Errorf("%s: %w", path, errEmpty)
	}
	return string(data), err
}

// maxFile is more than any file has that usher is configured with.
const maxFile = 16 << 20

// ReadFile returns the content of a file, which may be a device without end, such as /dev/zero.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = &os.PathError{Op: "read", Path: path, Err: errTooLarge}
	}
	return data, err
}

// ReadRegular is ReadFile for a file that is read again while usher runs. A pipe is an error: it has its content
// only once, and opening it could wait for ever.
func ReadRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &os.PathError{Op: "read", Path: path, Err: errIrregular}
	case info.Size() > maxFile: // known before it is read, again and again
		return nil, &os.PathError{Op: "read", Path: path, Err: errTooLarge}
	}
	return ReadFile(path)
}

var (
	errEmpty     = errors.New("the file is empty")
	errTooLarge  = errors.New("the file is larger than 16 MiB")
	errIrregular = errors.New("it is not a regular file")
)
