package changes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxSubscriptions limits the work of matching them. Usually there is one.
const maxSubscriptions = 500

// snapshot is what a payload says about the tenant's rights. A value that is missing, or has an
// unexpected type, is empty.
type snapshot struct {
	tenant        text // its name
	features      []feature
	subscriptions []subscription
}

type feature struct {
	code     text
	name     text
	quantity text // the limit; empty: none
	value    text
}

func (f feature) String() string {
	switch {
	case f.quantity != "" && f.value != "":
		return fmt.Sprintf("%s (%s, value %q)", f.code, f.quantity, f.value)
	case f.quantity != "":
		return fmt.Sprintf("%s (%s)", f.code, f.quantity)
	case f.value != "":
		return fmt.Sprintf("%s (value %q)", f.code, f.value)
	default:
		return f.code.String()
	}
}

func (f feature) limit() text { return cmp.Or(f.quantity, "unlimited") }

type subscription struct {
	id                       text
	label                    text // distinguishes it from the others in its snapshot, if possible
	state                    text
	product, plan, priceList coded
	start, end               text
	trialStart, trialEnd     text
	features                 []feature
}

func (s *subscription) String() string {
	words := "subscription"
	if s.label != "" {
		words += " " + s.label.String()
	}
	if s.state != "" {
		words += " (" + s.state.String() + ")"
	}
	return words
}

// coded is a product, a plan or a price list.
type coded struct{ code, name text }

func (c coded) label() text { return cmp.Or(c.name, c.code) }

// read returns the snapshot in the body of a webhook, if it recognises one.
func read(body []byte) (snapshot, bool) {
	value, err := decode(body)
	if err != nil {
		return snapshot{}, false
	}
	payload := member(value, "payload")
	change, ok := member(payload, "change").(map[string]any)
	features, ok1 := list(change["features"])
	subscriptions, ok2 := list(change["subscriptions"])
	if !ok || !ok1 || !ok2 || len(subscriptions) > maxSubscriptions {
		return snapshot{}, false
	}
	return snapshot{
		tenant:        scalar(member(payload, "tenant"), "name"),
		features:      readFeatures(features),
		subscriptions: readSubscriptions(subscriptions),
	}, true
}

// decode reads JSON and keeps names and numbers exactly as they are written. The fields of a struct
// would match names in upper and lower case.
func decode(body []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is something after the value")
	}
	return value, nil
}

func readFeatures(items []any) []feature {
	var features []feature
	for _, item := range items {
		f := feature{
			code:     cmp.Or(scalar(item, "code"), scalar(item, "name")),
			name:     scalar(item, "name"),
			quantity: scalar(item, "quantity"),
			value:    scalar(item, "value"),
		}
		if f.code != "" {
			features = append(features, f)
		}
	}
	return features
}

func readSubscriptions(items []any) []subscription {
	var subscriptions []subscription
	times := make(map[text]int) // how often a label occurs
	for _, item := range items {
		if _, ok := item.(map[string]any); !ok {
			continue
		}
		features, _ := list(member(item, "features"))
		s := subscription{
			id:         scalar(item, "id"),
			state:      scalar(item, "state"),
			product:    readCoded(item, "product"),
			plan:       readCoded(item, "plan"),
			priceList:  readCoded(item, "price_list"),
			start:      scalar(item, "start_date"),
			end:        scalar(item, "end_date"),
			trialStart: scalar(item, "trial_start_date"),
			trialEnd:   scalar(item, "trial_end_date"),
			features:   readFeatures(features),
		}
		s.label = cmp.Or(s.product.label(), s.plan.label())
		times[s.label]++
		subscriptions = append(subscriptions, s)
	}
	for i := range subscriptions {
		s := &subscriptions[i]
		switch {
		case s.id == "":
		case s.label == "":
			s.label = "#" + s.id
		case times[s.label] > 1:
			s.label += " #" + s.id
		}
	}
	return subscriptions
}

func readCoded(v any, name string) coded {
	v = member(v, name)
	return coded{scalar(v, "code"), scalar(v, "name")}
}

// member returns an object's member, or nil.
func member(v any, name string) any {
	object, _ := v.(map[string]any)
	return object[name]
}

// list returns the items of a list; a missing list is empty.
func list(v any) (items []any, ok bool) {
	items, ok = v.([]any)
	return items, ok || v == nil
}

// scalar returns an object's member as text. For an object or a list it returns nothing: what a
// customised payload has there must not be shown by accident.
func scalar(v any, name string) text {
	switch v := member(v, name).(type) {
	case string:
		return text(v)
	case json.Number:
		return number(v)
	case bool:
		return text(strconv.FormatBool(v))
	default:
		return ""
	}
}

// number writes 5.0 as 5.
func number(n json.Number) text {
	const exact = 1 << 53
	if f, err := n.Float64(); err == nil && f > -exact && f < exact && f == float64(int64(f)) {
		return text(strconv.FormatInt(int64(f), 10))
	}
	return text(n)
}
