package secret

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFromFile(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name, content, want string
		err                 error
	}{
		{"plain", "s3cret", "s3cret", nil},
		{"newline", "s3cret\n", "s3cret", nil},
		{"windows newline", "s3cret\r\n", "s3cret", nil},
		{"inner and leading white space stays", " a b\t\n", " a b\t", nil},
		{"empty", "", "", errEmpty},
		{"only a newline", "\n", "", errEmpty},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(tc.name, " ", "-"))
			write(t, path, tc.content)
			v, err := FromFile(path)
			if !errors.Is(err, tc.err) || v.Get() != tc.want {
				t.Fatalf("got %q, %v; want %q, %v", v.Get(), err, tc.want, tc.err)
			}
		})
	}
	if _, err := FromFile(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	huge := filepath.Join(dir, "huge") // as /dev/zero: it must not be read to its end
	write(t, huge, "s3cret")
	if err := os.Truncate(huge, maxFile+1); err != nil {
		t.Fatal(err)
	}
	if _, err := FromFile(huge); !errors.Is(err, errTooLarge) {
		t.Errorf("huge file: %v", err)
	}
}

// The kubelet swaps the symlink ..data; a person truncates and writes the file. Watch must see both changes, and
// must not use an empty, half-written or missing file.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, sub, "secret"), sub+"\n")
	}
	link := filepath.Join(dir, "..data")
	if err := os.Symlink("v1", link); err != nil {
		t.Fatal(err)
	}
	mounted := filepath.Join(link, "secret")
	plain := filepath.Join(dir, "plain")
	write(t, plain, "first")

	synctest.Test(t, func(t *testing.T) {
		a, err := FromFile(mounted)
		if err != nil {
			t.Fatal(err)
		}
		b, err := FromFile(plain)
		if err != nil {
			t.Fatal(err)
		}
		changes := 0
		b.OnChange(func() { changes++ })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go Watch(ctx, slog.New(slog.DiscardHandler), a, b, nil, New("fixed"))
		wait := func() { time.Sleep(3 * pollEvery); synctest.Wait() }

		tmp := link + ".tmp"
		if err := os.Symlink("v2", tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, link); err != nil {
			t.Fatal(err)
		}
		wait()
		if got := a.Get(); got != "v2" {
			t.Errorf("after the symlink was swapped: %q", got)
		}

		write(t, plain, "")
		wait()
		if got := b.Get(); got != "first" {
			t.Errorf("truncated file: %q, want the last good value", got)
		}
		write(t, plain, "sec")
		time.Sleep(pollEvery)
		synctest.Wait()
		if got := b.Get(); got != "first" {
			t.Errorf("half-written file: %q, want the last good value", got)
		}
		write(t, plain, "second\n")
		wait()
		if got := b.Get(); got != "second" || changes != 1 {
			t.Errorf("after the change: %q, %d calls of OnChange, want 1", got, changes)
		}
		if err := os.Remove(plain); err != nil {
			t.Fatal(err)
		}
		wait()
		if got := b.Get(); got != "second" {
			t.Errorf("removed file: %q, want the last good value", got)
		}
		write(t, plain, "third")
		wait()
		if got := b.Get(); got != "third" || changes != 2 {
			t.Errorf("after it came back: %q, %d calls of OnChange, want 2", got, changes)
		}
	})
}

func TestNeverPrinted(t *testing.T) {
	v := New("hunter2")
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v, "in", struct{ V *Value }{v})
	encoded, _ := json.Marshal(v)
	fmt.Fprintf(&out, "%v %+v %#v %s %q %s", v, v, v, v, v, encoded)
	if strings.Contains(out.String(), "hunter2") {
		t.Fatalf("the secret shows: %s", out.String())
	}
}

func TestTokens(t *testing.T) {
	for list, want := range map[string][]Token{
		"t0ken":                           {{"", "t0ken"}},
		"ana:t0ken":                       {{"ana", "t0ken"}},
		" ana : t0ken , t1ken,ben:t2ken ": {{"ana", "t0ken"}, {"", "t1ken"}, {"ben", "t2ken"}},
		"ana:old,ana:new":                 {{"ana", "old"}, {"ana", "new"}},
		"":                                nil,
		"t0ken,":                          nil,
		"ana:":                            nil,
		":t0ken":                          nil,
		"ana:t0ken:more":                  nil,
	} {
		got, err := Tokens(list)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %+v, %v", list, len(got), err)
		}
		if err != nil && strings.Contains(err.Error(), "t0ken") {
			t.Errorf("a token shows: %v", err)
		}
	}
	if shown := fmt.Sprintf("%v %+v %#v %s", Token{"ana", "t0ken"}, []Token{{"ana", "t0ken"}}, Token{"ana", "t0ken"}, &Token{"ana", "t0ken"}); strings.Contains(shown, "t0ken") {
		t.Error("a token shows: " + shown)
	}
}
