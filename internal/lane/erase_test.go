package lane

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"usher/webhookgate"
)

// After an erasure the row of a lane is that of a new one, but for what says nothing about the tenant.
func TestEraseLeavesNothing(t *testing.T) {
	stays := []string{"LaneName", "ReceiverName", "Token", "Last", "LastAt", "Erased"}
	now := time.Now().UnixMicro()
	turn := &Turn{Now: now, Rules: &Rules{}, Lanes: map[webhookgate.LaneName]*Lane{},
		Numbers: 100, AddedBytes: map[string]int64{}, MayTakeOver: true}
	l := New(webhookgate.LaneName{Platform: "crm", Tenant: "acme"})
	turn.Add(l)
	row := reflect.ValueOf(l).Elem()
	for n := range row.NumField() {
		switch f := row.Field(n); {
		case !row.Type().Field(n).IsExported() || row.Type().Field(n).Name == "LaneName":
		case f.CanInt():
			f.SetInt(7)
		case f.Kind() == reflect.String:
			f.SetString("something")
		case f.Kind() == reflect.Bool:
			f.SetBool(true)
		case f.Type() == reflect.TypeFor[[]byte]():
			f.SetBytes([]byte("something"))
		default:
			t.Fatalf("what is a %v?", row.Type().Field(n))
		}
	}
	if err := l.Erase(); err != nil {
		t.Fatal(err)
	}
	fresh := reflect.ValueOf(New(l.LaneName)).Elem()
	for n := range row.NumField() {
		name := row.Type().Field(n).Name
		if !row.Type().Field(n).IsExported() || slices.Contains(stays, name) {
			continue
		}
		if got, want := row.Field(n).Interface(), fresh.Field(n).Interface(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v after an erasure, %v in a new lane", name, got, want)
		}
	}
	if l.Last != 101 || l.LastAt != now || l.Erased != now || l.Token != 7 || turn.AddedBytes["something"] != -7 {
		t.Errorf("%+v, %v", l, turn.AddedBytes)
	}
}
