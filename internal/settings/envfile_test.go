package settings

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseEnvFile(t *testing.T) {
	for _, tt := range []struct {
		name, content string
		want          []string
		err           string
	}{
		{"nothing", "", nil, ""},
		{"plain", "A=1\nB=two words\n", []string{"A=1", "B=two words"}, ""},
		{"comments and empty lines", "# A=1\n\n  # B=2\n; C=3\n \t\nD=4", []string{"D=4"}, ""},
		{"quotes", `A="a b"` + "\nB='c'\nC=\"\nD='e\"\nF=\"g\" \"h\"\nG=i\"j\"", []string{"A=a b", "B=c", `C="`, `D='e"`, `F=g" "h`, `G=i"j"`}, ""},
		{"one pair only", `A=""b""`, []string{`A="b"`}, ""},
		{"export", "export A=1\n  export  B=2\nexport_C=3\nexport=4", []string{"A=1", "B=2", "export_C=3", "export=4"}, ""},
		{"nothing is expanded", `A=$HOME ${B} %d \n # no comment` + "\nC=`id`", []string{`A=$HOME ${B} %d \n # no comment`, "C=`id`"}, ""},
		{"white space around", " A = 1 \nB=' 2 '\n", []string{"A=1", "B= 2 "}, ""},
		{"Windows", "\ufeffA=1\r\nB=\"2\"\r\n", []string{"A=1", "B=2"}, ""},
		{"empty values", "A=\nB=''", []string{"A=", "B="}, ""},
		{"equals signs", "A=b=c==", []string{"A=b=c=="}, ""},
		{"no value", "A=1\ns3cret\n", nil, "lines that are not NAME=VALUE: 2"},
		{"not a name", "1A=s3cret\nB C=s3cret\n=s3cret\nA-B=s3cret\nD=\x00", nil, "lines that are not NAME=VALUE: 1, 2, 3, 4, 5"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseEnvFile(tt.content)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if said := errorText(err); said != tt.err {
				t.Errorf("error %q, want %q", said, tt.err)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestWithFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := file("first", "A=first\nB=first\nC=first\nD=first\n"), file("second", "B=second\nC=second\nD=second\n")
	environ, err := WithFiles([]string{"C=environment", "D=", "E="}, first, second)
	if err != nil {
		t.Fatal(err)
	}
	got := Environment(environ)
	for name, want := range map[string]string{"A": "first", "B": "second", "C": "environment", "D": "second", "E": ""} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if !slices.Contains(environ, "E=") {
		t.Error("an empty variable that no file sets is gone: exec passes it on")
	}

	// A secret and the file that has it are one setting: who sets the one has set the other aside.
	mine, own := file("mine", "USHER_KEY=t0psecret\nUSHER_ADMIN_TOKEN_FILE=/ana\n"), file("own", "USHER_KEY_FILE=/key\n")
	environ, err = WithFiles([]string{"USHER_ADMIN_TOKEN=ben"}, mine, own)
	if err != nil {
		t.Fatal(err)
	}
	if got := Environment(environ); got["USHER_KEY"]+got["USHER_ADMIN_TOKEN_FILE"] != "" || got["USHER_KEY_FILE"] != "/key" || got["USHER_ADMIN_TOKEN"] != "ben" {
		t.Errorf("what was set aside is still there: %v", got)
	}

	huge := file("huge", "")
	if err := os.Truncate(huge, 17<<20); err != nil {
		t.Fatal(err)
	}
	_, err = WithFiles(nil, filepath.Join(dir, "none"), first, dir, file("bad", "s3cret"), huge)
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 4 || !strings.Contains(problems[3], "larger than 16 MiB") || !strings.HasPrefix(problems[0], "--env-file "+filepath.Join(dir, "none")+": ") {
		t.Errorf("%v", err)
	}
	if strings.Contains(errorText(err), "s3cret") {
		t.Errorf("a line shows: %v", err)
	}
}

// Whatever a file contains, the result is a valid environment, and gives the same result if it is parsed again.
func FuzzEnvFile(f *testing.F) {
	for _, seed := range []string{"A=1\nB='2'\n", "export A=\"b c\"\r\n# comment\n", "\ufeffA=\x00", "=", "A==\"", "x", "A='\n'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		variables, err := parseEnvFile(content)
		if err != nil {
			if variables != nil {
				t.Errorf("%q with the error %v", variables, err)
			}
			return
		}
		var again strings.Builder
		for _, kv := range variables {
			name, value, ok := strings.Cut(kv, "=")
			if !ok || !variableName.MatchString(name) || strings.ContainsAny(kv, "\n\x00") {
				t.Fatalf("%q is not a variable", kv)
			}
			again.WriteString(name + "='" + value + "'\n")
		}
		if same, err := parseEnvFile(again.String()); err != nil || !slices.Equal(same, variables) {
			t.Errorf("read again: %q, want %q: %v", same, variables, err)
		}
	})
}
