package file

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"usher/internal/inbox/courier"
	"usher/internal/inbox/inboxtest"
	"usher/internal/inbox/record"
	"usher/webhookgate"
)

var (
	damages    = flag.Int("damages", 60, "how many random damages of an inbox's file are tried")
	damageSeed = flag.Uint64("damages.seed", 1, "which ones")
)

const (
	lanesOfOld = 40
	pageSize   = 4096
)

// oldFile is a file with some history, as it is on the disk after an orderly end: of each tenant the
// versions 1 to 3 were delivered, 4 is parked, 5 to 7 wait. It has branches, and outdated pages.
//
// former is what it was at times before that.
func oldFile(t *testing.T) (now []byte, former [][]byte) {
	dir := t.TempDir()
	path := filepath.Join(dir, "inbox.db")
	read := func() []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	synctest.Test(t, func(t *testing.T) {
		rc := new(inboxtest.Receiver)
		i := open(t, config(dir, rc))
		i.db.NoSync = true
		for version := 1; version <= 7; version++ {
			switch version {
			case 4:
				rc.Set(inboxtest.Status(422))
			case 5:
				rc.Set(inboxtest.Refusing)
			}
			for n := range lanesOfOld {
				i.keep(fmt.Sprint("t", n), fmt.Sprintf("%d %s", version, strings.Repeat("x", 50*(n%20))))
				if n%10 == 0 {
					synctest.Wait()
					former = append(former, read())
				}
			}
			time.Sleep(time.Minute)
			former = append(former, read())
		}
		i.stop()
	})
	return read(), former
}

// random damages: each is of a kind that disks, copies and people make.
func randomDamage(r *rand.Rand, b []byte, former [][]byte) ([]byte, string) {
	const page = pageSize
	b = bytes.Clone(b)
	at := r.IntN(len(b))
	this, other := at/page*page, r.IntN(len(b)/page)*page
	switch kind := r.IntN(13); kind {
	case 0:
		return b[:at], fmt.Sprintf("cut at %d", at)
	case 1:
		clear(b[this : this+page])
		return b, fmt.Sprintf("page %d zeroed", this/page)
	case 2:
		clear(b[this/512*512 : this/512*512+512])
		return b, fmt.Sprintf("sector at %d zeroed", this/512*512)
	case 3:
		copy(b[this:this+page], b[other:other+page])
		return b, fmt.Sprintf("page %d in the place of %d", other/page, this/page)
	case 4:
		n := r.IntN(len(former))
		if len(former[n]) < this+page {
			break
		}
		copy(b[this:this+page], former[n][this:])
		return b, fmt.Sprintf("page %d as it was at time %d", this/page, n)
	case 5:
		for n := at; n < min(at+64, len(b)); n++ {
			b[n] = byte(r.Uint32())
		}
		return b, fmt.Sprintf("noise at %d", at)
	case 6, 7, 8, 9: // what a page says of itself, and of its first elements
		at = this + r.IntN(16*6)
	}
	bit := r.IntN(8)
	b[at] ^= 1 << bit
	return b, fmt.Sprintf("bit %d of page %d, byte %d", bit, at/page, at%page)
}

// However a file is damaged, usher does not crash. Either it does not start, and says that the file is
// damaged; or it reports what is damaged and goes on with the rest, and nobody gets an old snapshot after a
// newer one; or the damage has no consequence at all.
func TestRandomDamage(t *testing.T) {
	whole, former := oldFile(t)
	dir := t.TempDir()
	outcomes := make(map[string]int)
	for n := range *damages {
		b, what := randomDamage(rand.New(rand.NewPCG(*damageSeed, uint64(n))), whole, former)
		outcomes[tryDamaged(t, dir, b, fmt.Sprintf("%d: %s", n, what))]++
	}
	t.Log(outcomes)
}

// A disk says that a page is written, and it is not: what was there before is whole, and of another time.
func TestLostWrites(t *testing.T) {
	whole, former := oldFile(t)
	dir, outcomes := t.TempDir(), make(map[string]int)
	for at := 2 * pageSize; at < len(whole); at += pageSize {
		tried := [][]byte{whole[at : at+pageSize]}
		for n, then := range former {
			if len(then) < at+pageSize {
				continue
			}
			old := then[at : at+pageSize]
			if slices.ContainsFunc(tried, func(b []byte) bool { return bytes.Equal(b, old) }) {
				continue
			}
			tried = append(tried, old)
			b := bytes.Clone(whole)
			copy(b[at:], old)
			outcomes[tryDamaged(t, dir, b, fmt.Sprintf("page %d as it was at time %d", at/pageSize, n))]++
		}
	}
	t.Log(outcomes)
}

// tryDamaged tries a damaged file, and says what came of it.
func tryDamaged(t *testing.T, dir string, b []byte, what string) (outcome string) {
	t.Helper()
	path := filepath.Join(dir, "inbox.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { outcome = useDamaged(t, path, b) })
	if t.Failed() {
		t.Fatal(what)
	}
	return outcome
}

// useDamaged opens a damaged file and does all that can be done with it.
func useDamaged(t *testing.T, path string, before []byte) (outcome string) {
	rc, log := new(inboxtest.Receiver), newErrorLog()
	cfg := config(filepath.Dir(path), rc)
	cfg.logTo(slog.New(log))
	told := make(map[webhookgate.Lane]uint64)
	cfg.OnSnapshot = func(lane webhookgate.Lane, id uint64, _ *webhookgate.Webhook) { told[lane] = id }
	s, err := Open(cfg.Config, courier.New(cfg.courier))
	if err != nil {
		if text := err.Error(); !strings.Contains(text, path) || !strings.Contains(text, "move it away") || strings.Contains(text, "\n") {
			t.Errorf("usher says: %v", err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
			t.Errorf("the damaged file was changed (%v)", err)
		}
		return "does not start"
	}
	s.db.NoSync = true
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx, context.Background()) }()
	time.Sleep(time.Hour)
	delivered := rc.Accepted()
	said := len(log.all())
	for n := range lanesOfOld {
		lane := inboxtest.Webhook(fmt.Sprint("t", n), "").Lane
		var want []string
		for version := 5; version <= 7; version++ {
			want = append(want, fmt.Sprintf("%s:%d", lane.Tenant, version))
		}
		var got []string
		for _, d := range delivered {
			if name, _, _ := strings.Cut(d, " "); strings.HasPrefix(name, lane.Tenant+":") {
				if len(got) > 0 && name <= got[len(got)-1] || name <= lane.Tenant+":3" {
					t.Errorf("%s was delivered after %v", name, got)
				}
				got = append(got, name)
			}
		}
		if said == 0 && fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("delivered without a word: %v", got)
		}
		w, id, err := s.Snapshot(t.Context(), lane)
		if said == 0 && (err != nil || told[lane] != id || !strings.HasPrefix(string(w.Body), "7 ")) {
			t.Errorf("without a word: the snapshot of %s is %v, %v", lane.Tenant, w, err)
		}
		if err == nil && w.Lane != lane {
			t.Errorf("%s has the snapshot of %v", lane.Tenant, w.Lane)
		}
	}
	entries, err := s.List(record.Filter{Search: "x"})
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if _, err := s.Show(e.ID); err != nil {
			t.Error(err)
		}
	}
	for n := range lanesOfOld {
		tenant := fmt.Sprint("t", n)
		_, err1 := s.Append(inboxtest.Webhook(tenant, "8 "), false)
		_, err2 := s.Platforms(tenant)
		if err1 != nil || err2 != nil {
			t.Error(err1, err2)
		}
		if n%2 == 0 {
			if _, err := s.Erase("p", tenant); err != nil {
				t.Error(err)
			}
		}
	}
	cancel()
	<-ended
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if said > 0 {
		return log.all()[0]
	}
	return "no consequence"
}
