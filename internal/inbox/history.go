package inbox

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"usher/internal/clock"
	"usher/internal/inbox/engine"
)

// What is wrong is a row, for each kind and subject, which every replica that finds it keeps alive: what nobody has
// found for a while is over. So it needs no one who speaks for all: the replica that an UPDATE gives a row to says it.

// A Trouble is something that was wrong, or still is, as the history has it.
type Trouble struct {
	About   string    `json:"-"`                 // its kind, and what it is about
	Replica string    `json:"replica,omitempty"` // who has found it last; empty: it is wrong for all who share the inbox
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"` // zero: it is not over
	TroubleWords

	Noticed time.Time `json:"-"` // when somebody first found it
	Seen    time.Time `json:"-"` // and last
	Told    int       `json:"-"` // one of Untold, ToldBegin, ToldOver
}

// TroubleWords say what is wrong.
type TroubleWords struct {
	Kind     string   `json:"kind"`
	Severity string   `json:"severity"`
	What     string   `json:"what"`
	Means    string   `json:"means"`
	Do       string   `json:"do"`
	Run      string   `json:"run,omitempty"`
	Named    []string `json:"named,omitempty"` // the tenants that it names, as ShowTenant writes them
}

// What notifications have said of a trouble.
const (
	Untold = iota
	ToldBegin
	ToldOver // nothing is left to say
)

const (
	// HistoryAge is how long what is over is kept.
	HistoryAge = 7 * 24 * time.Hour
	// TroubleEnds is how long nobody has found what is over.
	TroubleEnds = 30 * time.Second
	// TroubleSaid is how long something lasts, or is over, before it is said. What comes again before that goes on.
	// It is also the time between two messages, and how long one that is not known to be posted may be under way.
	TroubleSaid = time.Minute

	historyPatience = 3 * time.Second
)

// Found notes what is wrong now. before is what this process has noted while the inbox could not be written. With ends,
// what nobody has found for a while is over; with says, what is due to be said is given to this process: call Told
// once it is posted. Found returns all that is wrong now, on all replicas.
func (s *queue) Found(before, found []Trouble, ends, says bool) (now, say []Trouble, err error) {
	ctx, cancel := context.WithTimeout(s.run, historyPatience)
	defer cancel()
	type answer struct{ now, say []Trouble }
	a, err := do(ctx, s, op{}, func(t *turn) (a answer, _ error) {
		due := t.Now - clock.Micros(TroubleSaid)
		for i := range before {
			b := &before[i]
			t.tx.Queue("trouble_keep", nil, withoutZero(b.About), b.Replica, b.Began.UnixMicro(), b.Noticed.UnixMicro(), b.Seen.UnixMicro(),
				microsOrZero(b.Ended), int64(b.Told), b.named(), b.json())
		}
		for i := range found {
			f := &found[i]
			t.tx.Queue("trouble_again", nil, withoutZero(f.About), f.Replica, t.Now, due, f.named(), f.json())
			t.tx.Queue("trouble_new", nil, withoutZero(f.About), f.Replica, f.Began.UnixMicro(), t.Now, int64(f.Told), f.named(), f.json())
		}
		if ends {
			t.tx.Queue("troubles_end", nil, t.Now-clock.Micros(TroubleEnds))
		}
		if says {
			t.tx.Queue("troubles_claim", scanTroubles(&a.say), due, t.Now)
		}
		t.tx.Queue("troubles_expire", nil, t.Now-clock.Micros(HistoryAge))
		t.tx.Queue("troubles_since", scanTroubles(&a.now), int64(maxMicros))
		t.send()
		return a, nil
	})
	return a.now, a.say, err
}

const maxMicros = 1 << 62

// Told notes that these were posted.
func (s *queue) Told(said []Trouble) error {
	ctx, cancel := context.WithTimeout(s.run, historyPatience)
	defer cancel()
	_, err := do(ctx, s, op{}, func(t *turn) (_ struct{}, _ error) {
		for i := range said {
			t.tx.Queue("trouble_told", nil, withoutZero(said[i].About), said[i].Noticed.UnixMicro(), int64(said[i].Says()))
		}
		t.send()
		return
	})
	return err
}

// Says is what a message about a trouble says: that it began, or that it is over.
func (t *Trouble) Says() int {
	if t.Ended.IsZero() {
		return ToldBegin
	}
	return ToldOver
}

// Troubles returns what has ended since a time, what ended last first, and what is not over.
func (s *store) Troubles(ctx context.Context, since time.Time) (all []Trouble, err error) {
	ctx, cancel := context.WithTimeout(ctx, historyPatience)
	defer cancel()
	err = s.read(ctx, func(tx engine.Tx) error {
		tx.Queue("troubles_since", scanTroubles(&all), since.UnixMicro())
		return tx.Send()
	})
	return all, err
}

func scanTroubles(all *[]Trouble) func(engine.Row) error {
	return func(r engine.Row) error {
		var t Trouble
		var began, noticed, seen, ended, told int64
		var words string
		if err := r.Scan(&t.About, &t.Replica, &began, &noticed, &seen, &ended, &told, &words); err != nil {
			return err
		}
		t.Began, t.Noticed, t.Seen, t.Ended, t.Told = clock.Moment(began), clock.Moment(noticed), clock.Moment(seen), momentOrZero(ended), int(told)
		if json.Unmarshal([]byte(words), &t.TroubleWords) != nil {
			t.TroubleWords = TroubleWords{Kind: "damaged", Severity: "warning", What: "What was wrong cannot be read"}
		}
		*all = append(*all, t)
		return nil
	}
}

func (t *Trouble) json() string {
	words, _ := json.Marshal(t.TroubleWords) // text alone
	return withoutZero(string(words))
}

// named are the names of its tenants, each between two line ends. No name has one: ShowTenant escapes it.
func (t *Trouble) named() string {
	if len(t.Named) == 0 {
		return ""
	}
	return withoutZero("\n" + strings.Join(t.Named, "\n") + "\n")
}

// Names says whether a trouble names a tenant.
func (t *Trouble) Names(platform, tenant string) bool {
	return slices.Contains(t.Named, ShowTenant(platform, tenant))
}
