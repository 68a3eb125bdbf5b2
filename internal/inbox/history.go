package inbox

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
)

// History. What was wrong, from when to when, is a row: package history decides what is in it. Each row has one
// process that writes it: the replica whose trouble it is. What is true of the whole inbox, and what a replica has
// left that is gone, the speaker writes: the replica that holds the lease in the table of that name, and that sends
// the notifications.

// A Trouble is something that was wrong, or still is, as the history has it.
type Trouble struct {
	ID       string    `json:"-"`                 // by chance
	About    string    `json:"-"`                 // its kind, and what it is about
	Replica  string    `json:"replica,omitempty"` // whose it is; empty: that of all who share the inbox
	Began    time.Time `json:"began"`
	Ended    time.Time `json:"ended,omitzero"` // zero: it is not over
	Noticed  time.Time `json:"-"`
	Said     time.Time `json:"-"` // when a notification said it; zero: none has
	SaidOver time.Time `json:"-"` // when one said that it is over
	Erased   int64     `json:"-"` // how many erasures have changed its words
	TroubleWords
}

// TroubleWords say what is wrong, at its worst.
type TroubleWords struct {
	Kind     string `json:"kind"`
	Severity string `json:"severity"`
	What     string `json:"what"`
	Means    string `json:"means"`
	Do       string `json:"do"`
	Run      string `json:"run,omitempty"`
	Then     string `json:"then,omitempty"`     // what is to do although it is over
	Webhooks int    `json:"webhooks,omitempty"` // how many it is about
	Tenants  int    `json:"tenants,omitempty"`

	Part     string `json:"part,omitempty"`
	Receiver string `json:"receiver,omitempty"`
	// Named are the tenants that it is about, as ShowTenant writes them; none: it may concern any.
	Named  []string `json:"named,omitempty"`
	Others bool     `json:"others,omitempty"` // it may concern others, too
}

// A Replica is a process with a gate that uses this inbox.
type Replica struct {
	Name  string
	Since time.Time // when it started
	Seen  time.Time // when it last said that it is there
	Ended bool      // it said that it ends
}

// A Night is what the inbox has of troubles now.
type Night struct {
	Troubles []Trouble // that are not over; or over, but not for long, or not said
	Replicas []Replica
	Said     time.Time // when the last notification went out
}

const (
	// HistoryAge and HistorySize bound what is kept of what is over.
	HistoryAge  = 7 * 24 * time.Hour
	HistorySize = 1000
	// SpeakerLease is how long a replica that has taken it speaks for all. It is renewed with each sign.
	SpeakerLease = time.Minute
	// recentTrouble is how long ago something may be over that Tonight still has.
	recentTrouble = 2 * time.Minute
	nightPatience = 3 * time.Second
)

// Tonight returns what the inbox has of troubles now.
func (s *Inbox) Tonight(ctx context.Context) (*Night, error) {
	ctx, cancel := context.WithTimeout(ctx, nightPatience)
	defer cancel()
	n := new(Night)
	err := s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("troubles_now", func(r engine.Row) error {
			t, err := scanTrouble(r)
			if err == nil {
				n.Troubles = append(n.Troubles, t)
			}
			return err
		}, microsOf(s.Now())-clock.Micros(recentTrouble), int64(HistorySize))
		tx.Queue("replicas", func(r engine.Row) error {
			var one Replica
			var since, seen, ended int64
			err := r.Scan(&one.Name, &since, &seen, &ended)
			one.Since, one.Seen, one.Ended = clock.Moment(since), clock.Moment(seen), ended != 0
			n.Replicas = append(n.Replicas, one)
			return err
		})
		tx.Queue("trouble_said", func(r engine.Row) error {
			var at int64
			err := r.Scan(&at)
			n.Said = momentOrZero(at)
			return err
		})
		return tx.Send()
	})
	if err != nil {
		return nil, err // half a night would look as if the rest were over
	}
	return n, nil
}

// Troubles returns what has ended since a time, or is not over, what began last first.
func (s *Inbox) Troubles(ctx context.Context, since time.Time, most int) (all []Trouble, err error) {
	ctx, cancel := context.WithTimeout(ctx, nightPatience)
	defer cancel()
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("troubles_since", func(r engine.Row) error {
			t, err := scanTrouble(r)
			if err == nil {
				all = append(all, t)
			}
			return err
		}, microsOf(since), int64(most))
		return tx.Send()
	})
	return all, err
}

// A Sign is what a replica writes about itself and its troubles.
type Sign struct {
	Replica  string
	Since    time.Time
	Troubles []Trouble // that have changed
	Said     []Trouble // of which only that has changed
	Gone     []string  // replicas to forget
	Ends     bool      // it ends: somebody else may speak
}

// Sign writes it, and returns whether this replica speaks for all.
func (s *Inbox) Sign(sign *Sign) (speaks bool, _ error) {
	ctx, cancel := context.WithTimeout(s.run, nightPatience)
	defer cancel()
	return attempt(ctx, s, work{}, func(t *sqlTurn) (takes bool) {
		for i := range sign.Troubles {
			queueTrouble(t.tx, &sign.Troubles[i])
		}
		for i := range sign.Said {
			said := &sign.Said[i]
			t.tx.Queue("trouble_say", nil, said.ID, microsOf(said.Said), microsOf(said.SaidOver))
		}
		for _, name := range sign.Gone {
			t.tx.Queue("replica_forget", nil, name)
		}
		t.tx.Queue("replica_sign", nil, sign.Replica, microsOf(sign.Since), t.Now, boolNumber(sign.Ends))
		until := t.Now + clock.Micros(SpeakerLease)
		if sign.Ends {
			until = 0
		}
		take := func(r engine.Row) error { takes = true; return r.Scan(new(int64)) }
		t.tx.Queue("speaker_take", take, sign.Replica, until, t.Now, t.Now+clock.Micros(2*SpeakerLease))
		t.tx.Queue("troubles_expire", nil, t.Now-clock.Micros(HistoryAge), int64(HistorySize))
		t.send()
		return takes
	})
}

func queueTrouble(tx engine.Tx, t *Trouble) {
	words, _ := json.Marshal(t.TroubleWords) // text and numbers
	tx.Queue("trouble_put", nil,
		t.ID,
		t.Replica,
		withoutZero(t.About),
		microsOf(t.Began),
		microsOf(t.Noticed),
		microsOf(t.Ended),
		microsOf(t.Said),
		microsOf(t.SaidOver),
		t.Erased,
		withoutZero(string(words)))
}

// scanTrouble reads a row. After an error it is not known of what trouble, nor of when, so nobody may show or say it.
func scanTrouble(r engine.Row) (t Trouble, err error) {
	var began, noticed, ended, said, over int64
	var words string
	if err = r.Scan(&t.ID, &t.Replica, &t.About, &began, &noticed, &ended, &said, &over, &t.Erased, &words); err != nil {
		return t, err
	}
	const year9999 = 253_370_764_800_000_000 // JSON has no time after it
	for _, at := range []*int64{&began, &noticed, &ended, &said, &over} {
		*at = min(max(*at, 0), year9999)
	}
	t.Began, t.Noticed, t.Ended = clock.Moment(began), clock.Moment(noticed), momentOrZero(ended)
	t.Said, t.SaidOver = momentOrZero(said), momentOrZero(over)
	if json.Unmarshal([]byte(words), &t.TroubleWords) != nil { // a damaged row: its times are still right
		t.TroubleWords = TroubleWords{
			Kind:     damagedKind,
			Severity: "warning",
			What:     "What was wrong cannot be read: its row is damaged",
		}
	}
	return t, nil
}

func momentOrZero(at int64) (zero time.Time) {
	if at == 0 {
		return zero
	}
	return clock.Moment(at)
}

// eraseTroubles takes a tenant out of the history. What only its kind says stays.
func (t *sqlTurn) eraseTroubles(platform, tenant string) {
	var named []Trouble
	t.tx.Queue("troubles_all", func(r engine.Row) error {
		one, err := scanTrouble(r)
		if err != nil {
			one.Kind = damagedKind
		}
		if one.TroubleWords.Erase(platform, tenant) {
			named = append(named, one)
		}
		return err
	})
	t.send()
	for i := range named {
		words, _ := json.Marshal(named[i].TroubleWords)
		t.tx.Queue("trouble_reword", nil, named[i].ID, withoutZero(string(words)))
	}
}

// ErasedWords stand for words that named a tenant which was erased since.
const ErasedWords = "What was wrong is not shown: it named a tenant that was erased since"

// damagedKind stands for the kind of a trouble whose row is damaged. It may name anybody.
const damagedKind = "damaged"

// Erase replaces words that name a tenant, and says whether there were any.
func (w *TroubleWords) Erase(platform, tenant string) bool {
	name := ShowTenant(platform, tenant)
	says := hasWord(w.What, tenant) || hasWord(w.Run, tenant) || hasWord(w.What, escapeCode(tenant))
	if w.Kind != damagedKind && !slices.Contains(w.Named, name) && !says {
		return false
	}
	w.Named = slices.DeleteFunc(slices.Clone(w.Named), func(s string) bool { return s == name })
	w.What, w.Run = ErasedWords, ""
	return true
}

// hasWord says whether a text has a word that stands alone.
func hasWord(in, word string) bool {
	for from := 0; word != ""; from++ {
		i := strings.Index(in[from:], word)
		if i < 0 {
			break
		}
		from += i
		last, _ := utf8.DecodeLastRuneInString(in[:from])
		first, _ := utf8.DecodeRuneInString(in[from+len(word):])
		if !isWordly(last) && !isWordly(first) {
			return true
		}
	}
	return false
}

func isWordly(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }

func microsOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}
