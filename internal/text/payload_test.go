package text

import (
	"bytes"
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"
)

func nested(depth int, inside string) string {
	return strings.Repeat("[", depth) + inside + strings.Repeat("]", depth)
}

func TestPayload(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"nothing":     {"", ""},
		"not JSON":    {"{\"a\":\x1b", "{\"a\":\x1b"},
		"not UTF-8":   {"\"\xff\"", "\"\uFFFD\""},
		"a value":     {` 1e999 `, "1e999"},
		"empty":       {`{"a":{ },"b":[]}`, "{\n  \"a\": {},\n  \"b\": []\n}"},
		"strings":     {`["[\"{\\","é\u0000,:"]`, "[\n  \"[\\\"{\\\\\",\n  \"é\\u0000,:\"\n]"},
		"deep":        {nested(maxIndent+1, "1, 2"), nested(maxIndent+1, "1,2")},
		"much deeper": {nested(9990, "1"), nested(9990, "1")},
	} {
		if got, left := Payload([]byte(tc.body)); left != 0 || got != tc.want {
			t.Errorf("%s: %d left out, %.100q, want %.100q", name, left, got, tc.want)
		}
	}
}

// What people see of a payload is as large as it may be, and costs that much, whatever the shape of the payload is.
func TestPayloadIsBounded(t *testing.T) {
	for name, body := range map[string]string{
		"deep, and wide":          nested(9900, strings.Repeat("0,", 25_000)+"0"),
		"wide":                    "[" + strings.Repeat("0,", 1<<20) + "0]",
		"wide, as deep as people": nested(maxIndent, strings.Repeat("0,", 1<<20)+"0"),
		"one long string":         `{"a":"` + strings.Repeat("é", 1<<20) + `"}`,
		"objects":                 strings.Repeat(`{"":`, 9900) + "0" + strings.Repeat("}", 9900),
		"spaces":                  "[" + strings.Repeat(" ", 1<<22) + "0]",
		"not JSON":                strings.Repeat("{", 1<<20),
		"too deep for JSON":       strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20),
		"not UTF-8":               strings.Repeat("a\xff", 1<<20),
		"never a character":       strings.Repeat("\x80", 1<<20),
	} {
		src := []byte(body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		shown, left := Payload(src)
		value, leftOfValue := JSONPayload(src)
		runtime.ReadMemStats(&after)
		most := MaxPayload
		if !utf8.Valid(src) {
			most *= 2 // such a byte, or a run of them, is shown as U+FFFD
		}
		if len(shown) > most || !utf8.ValidString(shown) || left < 0 || left == 0 && len(shown) < min(len(src), 1000) && name != "spaces" {
			t.Errorf("%s: %d bytes, %d left out", name, len(shown), left)
		}
		if left > 0 && len(shown) < MaxPayload-100 && name != "never a character" {
			t.Errorf("%s: only %d bytes, although %d are left out", name, len(shown), left)
		}
		if !json.Valid(value) || leftOfValue != left && leftOfValue != 0 || len(value) > 6*most {
			t.Errorf("%s: %d bytes, %d left out: %.100s", name, len(value), leftOfValue, value)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 { // half of that without -race
			t.Errorf("%s: %d bytes of memory", name, used)
		}
	}
}

// A program gets JSON as JSON, unless that is so deep that parsers give up.
func TestJSONPayload(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"JSON":            {`{"a": [1, "]"]}`, `{"a": [1, "]"]}`},
		"twice the name":  {`{"a":1,"a":2}`, `{"a":1,"a":2}`},
		"not JSON":        {"{\xff", "\"{\uFFFD\""},
		"as deep as goes": {nested(maxDepth, `"[["`), nested(maxDepth, `"[["`)},
	} {
		if got, left := JSONPayload([]byte(tc.body)); string(got) != tc.want || left != 0 {
			t.Errorf("%s: %s, %d left out", name, got, left)
		}
	}
	for name, body := range map[string]string{"deeper": nested(maxDepth+1, "1"), "large": `["` + strings.Repeat("x", MaxPayload) + `"]`} {
		var shown string
		value, left := JSONPayload([]byte(body))
		if err := json.Unmarshal(value, &shown); err != nil || !strings.HasPrefix(shown, "[") || (left > 0) != (name == "large") {
			t.Errorf("%s: %v, %d left out, %.100s", name, err, left, shown)
		}
	}
}

// What people see of JSON is that JSON, and programs always get JSON.
func FuzzPayload(f *testing.F) {
	for _, seed := range []string{`{"a":[1,{},"x\"]"],"b":null}`, nested(20, "1,2"), nested(maxDepth+1, ""), `[ ]`, "\xff", `{"\\":"\\\\"}`, " \n", "-1.5e+9"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		shown, left := Payload(body)
		if value, _ := JSONPayload(body); !json.Valid(value) || !utf8.ValidString(shown) {
			t.Fatalf("%q is shown as %q, and to programs as %q", body, shown, value)
		}
		var want, got bytes.Buffer
		if left > 0 || !utf8.Valid(body) || json.Compact(&want, body) != nil {
			return
		}
		if err := json.Compact(&got, []byte(shown)); err != nil || !bytes.Equal(want.Bytes(), got.Bytes()) {
			t.Fatalf("%q is shown as %q", body, shown)
		}
	})
}
