// Package secret holds values that must not be seen: passwords, keys and tokens
// of the settings. A Value comes from a variable, or from a file that is read
// again when its content changes, and it prints as [redacted] wherever it ends
// up in a log line or an error by accident.
package secret

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	redacted = "[redacted]"

	// maxSize bounds what is read from a file: a secret is short, and a path
	// that names something endless must not fill the memory.
	maxSize = 64 << 10

	// pollEvery is how often Watch compares the files' content. Times and
	// inodes are not asked: a rewritten file may keep both, and a mounted
	// secret changes by swapping a symlink two directories up.
	pollEvery = 500 * time.Millisecond
)

// Value is one secret. The zero of *Value (nil) is a secret that is not set.
type Value struct {
	current atomic.Pointer[string]

	path    string // of the file it comes from, or empty
	watched bool   // whether path names a regular file that can be read again

	require func(string) error // of what the file holds; nil: nothing

	mu       sync.Mutex // guards onChange
	onChange []func()

	// Watch's own: what the last look at the file gave.
	candidate string
	complaint string
}

// New returns a secret with a fixed value.
func New(value string) *Value {
	v := new(Value)
	v.current.Store(&value)
	return v
}

// FromFile returns the secret that a file holds, its trailing newline dropped.
func FromFile(path string) (*Value, error) {
	v := &Value{path: path}
	value, regular, err := read(path)
	if err != nil {
		return nil, err
	}
	// A pipe (as of a shell's process substitution) can be read only once.
	v.watched = regular
	v.current.Store(&value)
	v.candidate = value
	return v, nil
}

// Get returns the current value; the empty string when v is nil.
func (v *Value) Get() string {
	if v == nil {
		return ""
	}
	return *v.current.Load()
}

// Getter returns Get; nil when v is nil, for those to whom a nil func means that the secret
// is not set.
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

// Require has check decide whether a new content of the file may be used; where it says
// no, the last good value stays. Its error must not hold the value. To be called before
// Watch.
func (v *Value) Require(check func(string) error) { v.require = check }

// OnChange has f called, from Watch's goroutine, after each change of the value.
func (v *Value) OnChange(f func()) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.onChange = append(v.onChange, f)
}

// String, GoString, LogValue and MarshalText keep the value out of whatever prints v.
func (v *Value) String() string               { return redacted }
func (v *Value) GoString() string             { return redacted }
func (v *Value) LogValue() slog.Value         { return slog.StringValue(redacted) }
func (v *Value) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Watch looks at the files of the values until ctx ends, and takes over what
// changed. The last good value stays when a file can't be read or is empty.
func Watch(ctx context.Context, log *slog.Logger, values ...*Value) {
	var watched []*Value
	for _, v := range values {
		if v != nil && v.watched {
			watched = append(watched, v)
		}
	}
	if len(watched) == 0 {
		return
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for _, v := range watched {
				v.look(log)
			}
		}
	}
}

// look reads the file once. A new content counts only when two looks in a row
// saw the same: a file that is being rewritten in place may be half there.
func (v *Value) look(log *slog.Logger) {
	value, _, err := read(v.path)
	if err == nil && v.require != nil {
		err = v.require(value)
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
	v.mu.Lock()
	callbacks := v.onChange
	v.mu.Unlock()
	for _, f := range callbacks {
		f()
	}
}

func read(path string) (value string, regular bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", false, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return "", false, err
	}
	if len(data) > maxSize {
		return "", false, fmt.Errorf("%s is larger than %d bytes: not a secret", path, maxSize)
	}
	data = bytes.TrimRight(data, "\r\n")
	if len(bytes.TrimSpace(data)) == 0 {
		return "", false, fmt.Errorf("%s: %w", path, ErrEmpty)
	}
	return string(data), info.Mode().IsRegular(), nil
}

// ErrEmpty is what FromFile answers for a file with nothing in it.
var ErrEmpty = errors.New("the file is empty")
