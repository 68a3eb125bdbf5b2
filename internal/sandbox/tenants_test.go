package sandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// The tables of the published interface. A "?" before the type marks a field that only some payloads have, and
// "|null" a field that is null in some. The service does not document which fields that can be.
var tables = map[string]map[string]string{
	"envelope": {"type": "string", "payload": "payload"},
	"payload":  {"tenant": "tenant", "change": "change"},
	"tenant":   {"id": "integer", "code": "string", "name": "string", "platform": "platform", "account": "account"},
	"platform": {"id": "integer", "code": "string", "name": "string"},
	"account":  {"id": "integer", "name": "string", "billing_day": "integer", "contacts": "[]contact|null"},
	"contact":  {"id": "integer", "first_name": "string", "last_name": "string", "email": "string"},
	"change":   {"features": "[]feature", "subscriptions": "[]subscription"},
	"feature":  {"code": "string", "name": "string", "value": "?string|null", "quantity": "integer|null"},
	"subscription": {
		"id": "?integer|null", "state": "string", "start_date": "date", "end_date": "date|null",
		"trial_start_date": "date|null", "trial_end_date": "date|null",
		"plan": "plan", "price_list": "?coded|null", "product": "?coded|null", "features": "[]feature",
	},
	"plan":  {"code": "string|null", "name": "string"},
	"coded": {"code": "string", "name": "string"},
}

// shapes checks values against the tables, and records which optional variants occurred.
type shapes struct {
	t    *testing.T
	seen map[string]bool
}

func (s shapes) object(path, table string, v any) {
	s.t.Helper()
	m, ok := v.(map[string]any)
	if !ok {
		s.t.Fatalf("%s is %T, not an object", path, v)
	}
	for name := range m {
		if tables[table][name] == "" {
			s.t.Fatalf("%s/%s is not documented", path, name)
		}
	}
	for name, kind := range tables[table] {
		kind, optional := strings.CutPrefix(kind, "?")
		kind, nullable := strings.CutSuffix(kind, "|null")
		value, present := m[name]
		field := table + "." + name
		switch {
		case !present && !optional:
			s.t.Fatalf("%s/%s is missing", path, name)
		case !present:
			s.seen[field+" absent"] = true
		case value == nil && nullable:
			s.seen[field+" null"] = true
		default:
			s.seen[field+" present"] = true
			s.value(path+"/"+name, kind, value)
		}
	}
}

func (s shapes) value(path, kind string, v any) {
	s.t.Helper()
	if element, isArray := strings.CutPrefix(kind, "[]"); isArray {
		list, ok := v.([]any)
		if !ok {
			s.t.Fatalf("%s is %T, not an array", path, v)
		}
		s.seen[fmt.Sprintf("%s of %d", element, min(len(list), 2))] = true
		for i, e := range list {
			s.object(fmt.Sprintf("%s/%d", path, i), element, e)
		}
		return
	}
	var err error
	text, isText := v.(string)
	switch kind {
	case "string":
	case "date":
		_, err = time.Parse(time.DateOnly, text)
	case "integer":
		var n json.Number
		n, isText = v.(json.Number)
		_, err = n.Int64()
	default:
		s.object(path, kind, v)
		return
	}
	if !isText || err != nil {
		s.t.Fatalf("%s is %v, not %s: %v", path, v, kind, err)
	}
}

func TestPayloadShapes(t *testing.T) {
	s, _ := newPair(3)
	check := shapes{t, make(map[string]bool)}
	for range 400 {
		e := mustChange(t, s)
		d := json.NewDecoder(bytes.NewReader(e.Body))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		check.object("", "envelope", v)
		tenant, err := readSnapshot(e.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range tenant.Subscriptions {
			check.seen[sub.State] = true
			if (sub.TrialStartDate == nil) != (sub.TrialEndDate == nil) || sub.EndDate != nil && sub.StartDate > *sub.EndDate {
				t.Errorf("dates of %+v", sub)
			}
		}
		checkFeatures(t, tenant)
	}
	for _, want := range []string{
		"trial", "active", "canceled",
		"feature.value absent", "feature.value present", "feature.quantity null", "feature.quantity present",
		"subscription.id absent", "subscription.id present",
		"subscription.price_list absent", "subscription.price_list present",
		"subscription.product absent", "subscription.product present",
		"subscription.trial_start_date null", "subscription.trial_start_date present",
		"plan.code null", "plan.code present", "subscription.end_date null", "subscription.end_date present",
		"feature.value null", "subscription.price_list null", "subscription.product null", "subscription.id null", "account.contacts null",
		"subscription of 1", "subscription of 2", "feature of 0", "contact of 0", "contact of 2",
	} {
		if !check.seen[want] {
			t.Errorf("no payload with %q", want)
		}
	}
}

// checkFeatures checks that a tenant may use exactly the features of its subscriptions that are not canceled.
func checkFeatures(t *testing.T, tenant Tenant) {
	t.Helper()
	live := 0
	for _, sub := range tenant.Subscriptions {
		if sub.State != "canceled" {
			live += len(sub.Features)
		}
	}
	if live != len(tenant.Features) {
		t.Errorf("%s has %d features, its subscriptions have %d", tenant, len(tenant.Features), live)
	}
}
