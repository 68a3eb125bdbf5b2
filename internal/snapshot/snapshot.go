// Package snapshot reads what a webhook says about its tenant: the tenant's name, the features that
// it may use, its subscriptions. It describes what changed between two snapshots ("users 5 → 10",
// "+ sso", "subscription trial → active"), and encodes the features, which an inbox keeps.
//
// Payloads can be customised in the billing service. So a snapshot has only what is at its documented
// place, and never the account and its contacts.
package snapshot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"usher/internal/content"
)

// A Snapshot is what one webhook says about its tenant. A field is empty if the webhook does not have
// it, or if it cannot be read.
type Snapshot struct {
	Name string `json:"name,omitempty"` // the tenant's
	ID   string `json:"-"`              // the tenant's id in the billing service, which stays when its code changes
	// Known says that the webhook has a list of features, perhaps an empty one, and that each of them
	// can be read. If not, nobody knows what the tenant may use, and Features is empty.
	Known         bool           `json:"known"`
	Features      []Feature      `json:"features"` // each code once, in the webhook's order
	Subscriptions []Subscription `json:"subscriptions,omitempty"`
	Change        []byte         `json:"-"` // see ChangeDigest
}

// A Feature is something that the tenant may use. Its members are in the order in which PostgreSQL's jsonb
// returns them, so that an inbox in a file and one in a database are exported alike.
type Feature struct {
	Code  string `json:"code"` // never empty
	Name  string `json:"name,omitempty"`
	Limit Limit  `json:"limit"`
	Value string `json:"value,omitempty"`
}

// A Subscription is where features come from. usher only shows it: dates and states decide nothing.
type Subscription struct {
	ID         string `json:"id,omitempty"`
	Label      string `json:"label,omitempty"` // its product or, if it has none, its plan or its id
	State      string `json:"state,omitempty"`
	Product    Coded  `json:"product"`
	Plan       Coded  `json:"plan"`
	PriceList  Coded  `json:"price_list"`
	Start      string `json:"start,omitempty"` // a date, as the next three
	End        string `json:"end,omitempty"`
	TrialStart string `json:"trial_start,omitempty"`
	TrialEnd   string `json:"trial_end,omitempty"`
}

// Coded is a product, a plan or a price list.
type Coded struct {
	Code string `json:"code,omitempty"`
	Name string `json:"name,omitempty"`
}

// Label returns its name or, if it has none, its code.
func (c Coded) Label() string { return cmp.Or(c.Name, c.Code) }

// Stored is a tenant's last snapshot as an inbox stores it.
type Stored struct {
	Platform, Tenant string    // codes; Platform is empty for none
	Name             string    // the tenant's
	ID               string    // the tenant's in the billing service; empty: unknown
	Seq              int64     // the webhook's number in the inbox; newer webhooks have higher numbers
	Webhook          string    // its webhook-id
	Received         time.Time // when it was taken in
	Features         []byte    // from Encode
	Change           []byte    // see ChangeDigest
	Source           string    // who made the webhook, if no sender did
	Erased           bool      // somebody has erased the tenant: beside the codes only Seq and Received are set
}

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

// String returns the limit in words, as in the header Usher-Limit.
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

// UnmarshalJSON reads what MarshalJSON writes.
func (l *Limit) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*l = Unlimited
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil || n < 0 || n > int64(MaxLimit) {
		return errors.New("not a limit")
	}
	*l = Limit(n)
	return nil
}

// Read returns the snapshot in the body of a webhook. The snapshot is empty if the gate would reject
// the body, for example because of a name twice in an object: the receiver may read it differently.
func Read(body []byte) Snapshot {
	value, fault := content.Parse(body)
	if fault != nil {
		return Snapshot{}
	}
	return Of(value)
}

// Of returns the snapshot in a webhook that content.Parse has read. It shares memory with that value.
func Of(value any) (s Snapshot) {
	payload := content.Member(value, "payload")
	change := content.Member(payload, "change")
	// It is kept longer than the rest.
	tenant := content.Member(payload, "tenant")
	s.Name = strings.Clone(withoutZero(textOf(tenant, "name")))
	if id := textOf(tenant, "id"); content.ValidCode(id) { // as long as an index of the inbox can take
		s.ID = strings.Clone(id)
	}
	s.Features, s.Known = readFeatures(content.Member(change, "features"))
	s.Subscriptions = readSubscriptions(content.Member(change, "subscriptions"))
	s.Change = ChangeDigest(value)
	return s
}

// Stored returns what an inbox keeps of a snapshot for years: the tenant's name and the features,
// and nothing about people.
func (s Snapshot) Stored(platform, tenant, webhook string) *Stored {
	return &Stored{Platform: platform, Tenant: tenant, Name: s.Name, ID: s.ID, Webhook: webhook, Features: s.Encode(), Change: s.Change}
}

// Encode returns the features as Stored has them, and nil if they are not Known.
func (s Snapshot) Encode() []byte {
	if !s.Known {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(append([]Feature{}, s.Features...)); err != nil { // never null
		panic(err) // cannot happen: strings and numbers only
	}
	return bytes.Clone(bytes.TrimSpace(b.Bytes())) // a clone, because the buffer is up to twice as large
}

// Decode reads what Encode wrote.
func Decode(features []byte) (Snapshot, error) {
	if len(features) == 0 {
		return Snapshot{}, nil
	}
	var list []Feature
	if err := json.Unmarshal(features, &list); err != nil || list == nil {
		return Snapshot{}, errors.New("the stored features cannot be read")
	}
	// It is a clone, because json allocates up to twice the room.
	return Snapshot{Known: true, Features: slices.Clone(merge(list))}, nil
}

// readFeatures reads a list of features. ok is false if it is not a list of objects, or if one of them
// cannot be read: a quantity of "5" must neither count as unlimited, nor remove the feature.
func readFeatures(value any) (_ []Feature, ok bool) {
	list, ok := value.([]any)
	if !ok {
		return nil, false
	}
	features := make([]Feature, 0, len(list))
	for _, item := range list {
		if item == nil {
			continue // null counts as absent
		}
		object, isObject := item.(map[string]any)
		_, isBool := object["code"].(bool)
		code, hasCode := scalar(object["code"])
		name, _ := scalar(object["name"]) // need not be readable: it is only shown
		value, hasValue := scalar(object["value"])
		limit, hasLimit := limitOf(object["quantity"])
		if !isObject || isBool || !hasCode || code != "" && (!hasValue || !hasLimit || !content.ValidCode(code)) {
			return nil, false
		}
		features = append(features, Feature{code, name, limit, value})
	}
	return merge(features), true
}

// withoutZero replaces the zero character, which many programs and PostgreSQL's text cannot have.
func withoutZero(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// merge drops features without a code, and combines features with the same code. These come from two
// subscriptions, and the tenant has paid for both. Names and values lose their zero characters.
func merge(list []Feature) []Feature {
	place := make(map[string]int, len(list)) // in merged, by code
	merged := list[:0]
	for _, f := range list {
		if f.Code == "" {
			continue
		}
		f.Name, f.Value = withoutZero(f.Name), withoutZero(f.Value)
		at, twice := place[f.Code]
		if !twice {
			place[f.Code] = len(merged)
			merged = append(merged, f)
			continue
		}
		first := &merged[at]
		if first.Limit == Unlimited || f.Limit == Unlimited {
			first.Limit = Unlimited
		} else {
			first.Limit = max(first.Limit, f.Limit)
		}
		first.Value, first.Name = cmp.Or(first.Value, f.Value), cmp.Or(first.Name, f.Name)
	}
	return merged
}

// limitOf reads a quantity. JSON has many ways to write a number: 1e3 and 25.0 are integers, too. A
// float64 holds every integer up to MaxLimit exactly, and ParseFloat returns infinity for a number that
// is too large.
func limitOf(quantity any) (_ Limit, ok bool) {
	if quantity == nil {
		return Unlimited, true
	}
	number, _ := quantity.(json.Number)
	f, err := number.Float64()
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return Limit(max(0, min(f, float64(MaxLimit)))), true
}

func readSubscriptions(value any) []Subscription {
	list, _ := value.([]any)
	var subscriptions []Subscription
	for _, item := range list {
		if _, ok := item.(map[string]any); !ok {
			continue
		}
		s := Subscription{
			ID: textOf(item, "id"), State: textOf(item, "state"),
			Product: readCoded(item, "product"), Plan: readCoded(item, "plan"), PriceList: readCoded(item, "price_list"),
			Start: textOf(item, "start_date"), End: textOf(item, "end_date"),
			TrialStart: textOf(item, "trial_start_date"), TrialEnd: textOf(item, "trial_end_date"),
		}
		if s.Label = cmp.Or(s.Product.Label(), s.Plan.Label()); s.Label == "" && s.ID != "" {
			s.Label = "#" + s.ID
		}
		subscriptions = append(subscriptions, s)
	}
	return subscriptions
}

func readCoded(value any, name string) Coded {
	value = content.Member(value, name)
	return Coded{textOf(value, "code"), textOf(value, "name")}
}

// textOf returns a member that is a scalar. A customised payload may have an object or a list there:
// that must not be shown by accident, and counts as empty.
func textOf(value any, name string) string {
	s, _ := scalar(content.Member(value, name))
	return s
}

// scalar returns a string, a number or a boolean as text, and null as the empty text.
func scalar(value any) (_ string, ok bool) {
	switch v := value.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	default:
		return "", false
	}
}

// Feature returns the feature with exactly this code. If ok is false and the snapshot is Known, the
// tenant may not use the feature.
func (s Snapshot) Feature(code string) (_ Feature, ok bool) {
	i := slices.IndexFunc(s.Features, func(f Feature) bool { return f.Code == code })
	if i < 0 {
		return Feature{}, false
	}
	return s.Features[i], true
}
