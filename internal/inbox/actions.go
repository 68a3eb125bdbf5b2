package inbox

import (
	"encoding/json"
	"time"

	"usher/internal/inbox/engine"
)

// An Action is something that a person did.
type Action struct {
	ID    int64     `json:"id"`
	At    time.Time `json:"at"`
	Who   string    `json:"who"`             // the token's name, or the address; for commands also the user's name
	What  string    `json:"what"`            // redeliver, discard, accept, pause, resume, forget, erase, export, import
	About string    `json:"about,omitempty"` // ids, a filter or a tenant; never a payload
	Count int       `json:"count"`           // how many webhooks it touched
}

// Note stores what a person did.
func (s *Inbox) Note(a Action) error {
	_, err := act(s, work{}, func(t *sqlTurn) (nothing, error) {
		a.At = t.time()
		entry, _ := json.Marshal(a) // strings and numbers
		t.statements = append(t.statements, func(tx engine.Tx) { tx.Queue("action_add", nil, t.now, string(entry)) })
		return nothing{}, nil
	})
	return err
}

// Actions returns the last actions with an id below before, newest first. Zero: there is no such bound.
func (s *Inbox) Actions(before int64, most int) (all []Action, err error) {
	if before == 0 {
		before = never
	}
	err = s.read(s.run, func(tx engine.Tx) error {
		tx.Queue("actions", func(r engine.Row) error {
			var a Action
			var id, at int64
			var entry string
			if err := r.Scan(&id, &at, &entry); err != nil {
				return err
			}
			json.Unmarshal([]byte(entry), &a) // Note wrote it
			a.ID, a.At = id, moment(at)
			all = append(all, a)
			return nil
		}, before, int64(most))
		return tx.Send()
	})
	return all, err
}
