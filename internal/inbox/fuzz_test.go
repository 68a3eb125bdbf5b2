package inbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"usher/internal/inbox/engine"
	"usher/internal/lane/state"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
	"usher/webhookgate"
)

// wholeInboxes are texts for live that make an inbox with every kind of row.
var wholeInboxes = []string{
	"",
	"0A 0B 0A 1A 2B",                   // A, B, A
	"5w 0A 0B 0C 1A 6w 2A 2B 9A 9A",    // the receiver takes one tenant's, rejects another's, fails a third's
	"rA rA rB 1A r1 uA uB uA c0",       // invalid, copies of them, settled by a later one
	"rA rB a1 a0 rC d0 0A",             // accepted and discarded
	"5w 0A 0B p0 0C 7w p. 1A P. pr 1B", // parked, then paused: a tenant, all, a receiver
	"sA sB sA eA eB 0A f0 0B x0 1A",    // signed ids, events without a tenant, forgotten, erased
	"5w 0A 0B 7w R0 0C R1 R. d1 4A 4B", // sent again; a tenant with an odd code
	"6w 0A 0B 0C R0 d0 rA r0 x1 f1 0A 8w",
}

// live does to an inbox what a text says, with two letters for each step.
func live(t *testing.T, d *desk, text string) {
	tenants := []string{"crm/acme", "crm/other", "acme", "docs/third", "crm/ü/%\u007f \"", strings.Repeat("x", 255)}
	answers := map[byte]func(int) *http.Response{'5': status(422), '6': status(500), '7': nil, '8': unreachable}
	reject := func(certain bool, n int) *webhookgate.Invalid {
		tenant := tenants[n%len(tenants)]
		body := lifeOf(tenant, n)
		if !certain {
			tenant, body = "", body+"\xff"
		}
		r := d.invalid(tenant, body)
		r.From, r.Cut, r.Faults[0].Message = "192.0.2.1", n%7 == 6, fmt.Sprint("is odd\xff", n)
		r.Header.Set("X-Tenant", "\xfe")
		return r
	}
	for i := 0; i+1 < len(text); i++ {
		verb, n := text[i], int(text[i+1])
		body := lifeOf("crm/acme", n)
		pause := Pause{}
		switch id := int64(n - '0' + 1); verb {
		case '0', '1', '2', '3', '4':
			tenant := tenants[verb-'0']
			hook := d.hook(tenant, lifeOf(tenant, n))
			hook.Header.Set("X-Tenant", "any") // no header can have what a code can
			d.sendHook(hook)
		case '5', '6', '7', '8': // so the receiver answers from now on
			d.main.set("", answers[verb])
		case 'w': // for a moment: what is paused waits for good
			for n := 0; n < 20 && strings.Contains(d.states(""), "waiting"); n++ {
				time.Sleep(time.Millisecond)
			}
		case 's':
			hook := d.hook("crm/acme", body)
			hook.SignedID = fmt.Sprint("signed-", n)
			d.sendHook(hook)
		case 'e':
			hook := d.hook("", body)
			hook.Lane, hook.Type, hook.Snapshot = webhookgate.LaneName{Platform: "crm", Type: "Event"}, "Event", false
			d.sendHook(hook)
		case 'r', 'u':
			d.RecordInvalid(reject(verb == 'r', n))
		case 'p', 'P':
			switch n {
			case '.':
			case 'r':
				pause.Receiver = "main"
			default:
				pause.Platform, pause.Tenant = "crm", "acme"
			}
			if verb == 'p' {
				check(t, d.Pause(pause))
			} else {
				must(d.Resume(pause))(t)
			}
		case 'R', 'd', 'a': // what can't be done is not
			switch verb {
			case 'R':
				_ = d.Redeliver(id, n%2 == 0)
			case 'd':
				_ = d.Discard(id)
			default:
				_, _ = d.Accept(id, n%2 == 0)
			}
		case 'f':
			must(d.Forget(nil, "acme"))(t)
		case 'x':
			_, _ = d.Erase("crm", "acme")
		default:
			continue
		}
		i++
	}
}

// lifeOf returns a snapshot of a tenant.
func lifeOf(tenant string, n int) string {
	platform, code, ok := strings.Cut(tenant, "/")
	if !ok {
		platform, code = "", tenant
	}
	quote := func(s string) string { text, _ := json.Marshal(s); return string(text) }
	const body = `{"type":"TenantProvisioningChange","payload":{` +
		`"tenant":{"code":%s,"platform":{"code":%s}},"change":{"features":[{"code":"f%d"}]}}}`
	return fmt.Sprintf(body, quote(code), quote(platform), n)
}

// An export, imported, is the same inbox: its export has the same lines, its lists and figures are the same, and
// dedup decides the same (but what the receiver holds is not restored). This holds for every inbox, of either kind,
// on both sides.
func FuzzMove(f *testing.F) {
	for _, life := range wholeInboxes {
		f.Add(life)
	}
	f.Fuzz(func(t *testing.T, life string) {
		if len(life) > 100 {
			t.Skip("long enough")
		}
		moves(t, life, inFile(t, newFile(t)), inFile(t, newFile(t)))
	})
}

// The same with a database at either end.
func TestMoveBetweenEngines(t *testing.T) {
	t.Parallel()
	for i, life := range wholeInboxes {
		if !thorough() && i != 3 && i != 6 { // these have most kinds of rows
			continue
		}
		from, to := inFile(t, newFile(t)), inDatabase(t, pgtest.Schema(t))
		if i%2 == 0 {
			from, to = to, from
		}
		moves(t, life, from, to)
	}
}

func moves(t *testing.T, life string, from, to func() engine.Engine) {
	d := newDesk(t, from)
	live(t, d, life)
	d.shut()
	still := d.cfg.Config
	still.Receivers = nil // nothing is delivered any more
	a, b := opened(t, from(), still), opened(t, to(), still)
	first := exported(t, a)
	if _, err := b.Import(t.Context(), strings.NewReader(first), nil); err != nil {
		t.Fatalf("%q: %v\n%s", life, err, first)
	}
	if second := exported(t, b); withoutFirst(first) != withoutFirst(second) {
		t.Fatalf("%q: %s", life, difference(first, second))
	}
	see := func(i *Inbox) string {
		check(t, i.readPauses(t.Context())) // it may not have read them yet
		st := i.Stats()
		listed, _ := json.Marshal(must(i.List(context.Background(), Filter{}))(t))
		var tenants []Tenant
		for _, tenant := range must(i.Tenants(context.Background(), TenantFilter{}))(t) {
			tenant.HeldUp = false // it is tried at once
			tenants = append(tenants, *tenant)
		}
		slices.SortFunc(tenants, func(a, b Tenant) int { // namesakes have no order
			return strings.Compare(a.Tenant+"/"+a.Platform, b.Tenant+"/"+b.Platform)
		})
		return fmt.Sprintf("\n%s\n%+v\n%v", listed, tenants,
			[]any{st.Pending, st.Parked, st.Invalid, st.Used, st.Tenants, st.Paused})
	}
	if x, y := see(a), see(b); x != y {
		t.Errorf("%q: %s", life, difference(x, y))
	}
	for _, tenant := range []string{"crm/acme", "crm/other", "acme"} {
		platform, code, ok := strings.Cut(tenant, "/")
		if !ok {
			platform, code = "", tenant
		}
		waiting := must(b.List(context.Background(), Filter{State: state.Waiting, Platform: &platform, Tenant: code}))(t)
		for k, n := range []int{'C', 'B', 'A', 'B', 'A'} {
			x, err := a.Store(d.hook(tenant, lifeOf(tenant, n)))
			check(t, err)
			y, err := b.Store(d.hook(tenant, lifeOf(tenant, n)))
			check(t, err)
			if k == 0 && len(waiting) == 0 {
				x = ""
			}
			if (x == "") != (y == "") {
				t.Errorf("%q: %s of %s is a copy of %q before, and of %q after", life, string(rune(n)), tenant, x, y)
			}
		}
	}
}

// difference returns where two texts begin to differ, apart from their first lines.
func difference(before, after string) string {
	x, y := strings.SplitAfter(before, "\n")[1:], strings.SplitAfter(after, "\n")[1:]
	i := 0
	for i < min(len(x), len(y)) && x[i] == y[i] {
		i++
	}
	line := func(all []string) string { return strings.Join(all[i:min(i+1, len(all))], "") }
	return fmt.Sprintf("line %d of %d and %d: before\n%safter\n%s", i+2, len(x), len(y), line(x), line(y))
}

func exported(t *testing.T, i *Inbox) string {
	t.Helper()
	var file bytes.Buffer
	must(i.Export(t.Context(), &file))(t)
	return file.String()
}

func imported(t *testing.T, i *Inbox, file string) {
	t.Helper()
	must(i.Import(t.Context(), strings.NewReader(file), nil))(t)
}

// However odd a file is, if it can be imported, the export of the result can be imported, too, and gives the same.
func FuzzImport(f *testing.F) {
	golden := string(must(os.ReadFile("testdata/export.jsonl"))(f))
	f.Add(golden)
	for line := range strings.Lines(golden) {
		f.Add(strings.SplitAfter(golden, "\n")[0] + line)
	}
	f.Fuzz(func(t *testing.T, file string) {
		file = testkit.Seal(file)
		a, b := opened(t, inFile(t, newFile(t))(), timeless), opened(t, inFile(t, newFile(t))(), timeless)
		if _, err := a.Import(t.Context(), strings.NewReader(file), nil); err != nil {
			return
		}
		first := exported(t, a)
		if _, err := b.Import(t.Context(), strings.NewReader(first), nil); err != nil {
			t.Fatalf("%v\n%s", err, first)
		}
		if second := exported(t, b); withoutFirst(first) != withoutFirst(second) {
			t.Fatal(difference(first, second))
		}
	})
}

// testdata/export.jsonl has every kind of line, as the first version writes it. Every later usher can import it, and
// exports the same again.
func TestExportFormat(t *testing.T) {
	onEngines(t, func(t *testing.T, open func() engine.Engine) {
		golden := string(must(os.ReadFile("testdata/export.jsonl"))(t))
		i := opened(t, open(), timeless)
		imported(t, i, golden)
		got := exported(t, i)
		const begin = `{"inbox":{"program":"usher","version":1,"at":"`
		if withoutFirst(got) != withoutFirst(golden) || !strings.HasPrefix(got, begin) {
			t.Errorf("the format has changed: raise its version, and read the old one, too.\n%s",
				difference(golden, got))
		}
		for _, outage := range regexp.MustCompile(`(?m)^\{"outage":.*\n`).FindAllString(golden, -1) {
			if !strings.Contains(got, outage) { // beside that since the export
				t.Errorf("missing: %s", outage)
			}
		}
		for _, table := range engine.Exported {
			if !strings.Contains(got, "\n{\""+table.Name+"\":") {
				t.Errorf("no row of %s", table.Name)
			}
		}
		for n, state := range state.Names() {
			if !strings.Contains(got, fmt.Sprintf(`"state":%d,`, n)) {
				t.Errorf("none that is %s", state)
			}
		}
	})
}
