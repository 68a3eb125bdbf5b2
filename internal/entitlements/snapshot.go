package entitlements

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"strconv"
	"strings"
	"unique"
)

// A Limit is how much of a feature a tenant may use.
type Limit int64

const (
	// Unlimited is no limit.
	Unlimited Limit = -1
	// MaxLimit is the largest limit: up to here every program reads the same number from JSON.
	// Anything above counts as MaxLimit.
	MaxLimit Limit = 1<<53 - 1
)

// Allows reports whether n is within the limit.
func (l Limit) Allows(n uint64) bool { return l == Unlimited || n <= uint64(l) }

// String returns the value of the header Usher-Limit.
func (l Limit) String() string {
	if l == Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(int64(l), 10)
}

// MarshalJSON writes no limit as null.
func (l Limit) MarshalJSON() ([]byte, error) {
	if l == Unlimited {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, int64(l), 10), nil
}

// A Feature is one that a tenant may use.
type Feature struct {
	Code  string
	Name  string
	Value string
	Limit Limit
}

// A Snapshot is what one webhook says about the features of its tenant. It never changes. The zero
// Snapshot is that of a webhook without a list of features.
//
// It is packed, because there may be 100,000 of them in memory. Codes and names come from the
// product catalogue of one company and are held once for all tenants. The tenant's own values are
// one string.
type Snapshot struct {
	known bool
	names []unique.Handle[named]
	own   string // the limit and value of each feature in turn, see packing.go
}

type named struct{ code, name string }

// Known reports whether the webhook had a list of features, even an empty one. If not, it is not
// known what the tenant may use.
func (s Snapshot) Known() bool { return s.known }

// Len is the number of features.
func (s Snapshot) Len() int { return len(s.names) }

// Feature returns the feature with exactly that code. If ok is false and the snapshot is Known, the
// tenant may not use it.
func (s Snapshot) Feature(code string) (_ Feature, ok bool) {
	rest := s.own
	for _, h := range s.names {
		var f Feature
		f.Limit, f.Value, rest = unpackOwn(rest)
		if n := h.Value(); n.code == code {
			f.Code, f.Name = n.code, n.name
			return f, true
		}
	}
	return Feature{}, false
}

// Features returns them in the order in which the webhook lists them.
func (s Snapshot) Features() iter.Seq[Feature] {
	return func(yield func(Feature) bool) {
		rest := s.own
		for _, h := range s.names {
			n := h.Value()
			f := Feature{Code: n.code, Name: n.name}
			f.Limit, f.Value, rest = unpackOwn(rest)
			if !yield(f) {
				return
			}
		}
	}
}

// newSnapshot packs features, whose codes are distinct.
func newSnapshot(features []Feature) Snapshot {
	s := Snapshot{known: true, names: make([]unique.Handle[named], 0, len(features))}
	var own []byte
	for _, f := range features {
		s.names = append(s.names, unique.Make(named{f.Code, f.Name}))
		own = packOwn(own, f.Limit, f.Value)
	}
	s.own = string(own)
	return s
}

// Parse returns the snapshot in the body of a webhook that the gate let through.
func Parse(body []byte) (Snapshot, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // so that 9007199254740993 does not become another number
	var value any // not a struct: its fields would match names in upper and lower case
	if err := d.Decode(&value); err != nil {
		return Snapshot{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return Snapshot{}, errors.New("there is something after the JSON value")
	}
	return FromValue(value), nil
}

// Essence returns a body from which Parse reads the same as from this one, and which says nothing else:
// what a store keeps for years has no contacts.
func Essence(body []byte) []byte {
	type feature struct {
		Code     string `json:"code"`
		Name     string `json:"name"`
		Value    string `json:"value"`
		Quantity Limit  `json:"quantity"`
	}
	snapshot, _ := Parse(body) // if it fails there is no list of features
	if !snapshot.Known() {
		return []byte("{}")
	}
	features := make([]feature, 0, snapshot.Len())
	for f := range snapshot.Features() {
		features = append(features, feature{f.Code, f.Name, f.Value, f.Limit})
	}
	b, _ := json.Marshal(map[string]any{"payload": map[string]any{"change": map[string]any{"features": features}}}) // it never fails
	return b
}

// FromValue returns the snapshot in a parsed webhook: objects are map[string]any, lists []any,
// numbers json.Number.
//
// With a schema of the user's own a webhook may not have the documented types. A value that cannot
// be understood counts as missing, but never in the tenant's favour: a limit that cannot be read is
// 0, not "no limit".
func FromValue(value any) Snapshot {
	list, ok := member(value, "payload", "change", "features").([]any)
	if !ok { // missing or null
		return Snapshot{}
	}
	features := make([]Feature, 0, len(list))
	place := make(map[string]int, len(list)) // in features, by code
	for _, item := range list {
		f := Feature{
			Code:  text(item, "code"),
			Name:  text(item, "name"),
			Value: text(item, "value"),
			Limit: limitOf(member(item, "quantity")),
		}
		if f.Code == "" {
			continue
		}
		at, twice := place[f.Code]
		if !twice {
			place[f.Code] = len(features)
			features = append(features, f)
			continue
		}
		features[at] = merge(features[at], f)
	}
	return newSnapshot(features)
}

// merge combines a feature that is listed twice, because two subscriptions have it: the tenant has
// paid for both.
func merge(first, second Feature) Feature {
	if first.Limit == Unlimited || second.Limit == Unlimited {
		first.Limit = Unlimited
	} else {
		first.Limit = max(first.Limit, second.Limit)
	}
	if first.Value == "" {
		first.Value = second.Value
	}
	if first.Name == "" {
		first.Name = second.Name
	}
	return first
}

// limitOf reads a quantity. JSON has many ways to write a number: 1e3 and 25.0 are
// integers too, and 1e300 is one that no int64 can hold.
func limitOf(quantity any) Limit {
	var written string
	switch q := quantity.(type) {
	case nil:
		return Unlimited
	case json.Number:
		written = q.String()
	case string: // possible with a schema of the user's own
		written = q
	}
	if strings.Trim(written, "+-.0123456789Ee") != "" {
		return 0 // strconv would also read "inf" and hex numbers
	}
	if n, err := strconv.ParseInt(written, 10, 64); err == nil {
		return Limit(max(0, min(n, int64(MaxLimit))))
	}
	// Exact below MaxLimit for a number without a fraction, and infinite for one that is too large.
	f, err := strconv.ParseFloat(written, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return Limit(max(0, min(f, float64(MaxLimit))))
}

// member returns the value at a path of exact names, or nil.
func member(value any, path ...string) any {
	for _, name := range path {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	return value
}

func text(value any, name string) string {
	s, _ := member(value, name).(string)
	return s
}
