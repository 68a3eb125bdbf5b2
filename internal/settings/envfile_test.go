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
		{"quotes", `A="a b"` + "\nB='c'\nC=\"g\" 'h'i\nD=i\"j\"\nE=' 2 ' \nF=\"\"", []string{"A=a b", "B=c", "C=ghi", `D=i"j"`, "E= 2 ", "F="}, ""},
		{"backslashes", `A=a\ b\\c\"` + "\nB=\"\\\"\\\\\\`\\$\\x\"\nC='\\'\nD=1\\\n2\nE=\"1\\\n2\"\nF=x\\ \nG=3", []string{`A=a b\c"`, "B=\"\\`$\\x", `C=\`, "D=12", "E=12", "F=x ", "G=3"}, ""},
		{"several lines", "A='-----BEGIN\nkey'\nB=\"1\n2\"\n", []string{"A=-----BEGIN\nkey", "B=1\n2"}, ""},
		{"nothing is expanded", "A=$HOME ${B} %d # no comment\nC=`id`", []string{"A=$HOME ${B} %d # no comment", "C=`id`"}, ""},
		{"white space around", " A = 1 \n", []string{"A=1"}, ""},
		{"Windows", "\ufeffA=1\r\nB=\"2\"\r\n", []string{"A=1", "B=2"}, ""},
		{"empty values", "A=\nB=''", []string{"A=", "B="}, ""},
		{"equals signs", "A=b=c==", []string{"A=b=c=="}, ""},
		{"no value", "A='1\n'\ns3cret\n", nil, "lines that are not NAME=VALUE, or whose quote does not end: 3"},
		{"not a name", "1A=s3cret\nB C=s3cret\n=s3cret\nA-B=s3cret\nexport C=s3cret\nD=\x00", nil, "lines that are not NAME=VALUE, or whose quote does not end: 1, 2, 3, 4, 5, 6"},
		{"a quote that does not end", "A=1\nB='s3cret\nC=2\n", nil, "lines that are not NAME=VALUE, or whose quote does not end: 2"},
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

// Whatever a file contains, the result is an error, or variables that are the same if a file with them is read again.
func FuzzEnvFile(f *testing.F) {
	for _, seed := range []string{"A=1\nB='2'\n", "export A=\"b c\"\r\n# comment\n", "\ufeffA=\x00", "=", "A==\"", "x", "A='\n'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		variables, err := parseEnvFile(content)
		if err != nil {
			return
		}
		var again strings.Builder
		for _, kv := range variables {
			name, value, ok := strings.Cut(kv, "=")
			if !ok || !variableName.MatchString(name) || strings.Contains(kv, "\x00") {
				t.Fatalf("%q is not a variable", kv)
			}
			again.WriteString(name + "='" + strings.ReplaceAll(value, "'", `'"'"'`) + "'\n")
		}
		if same, err := parseEnvFile(again.String()); err != nil || !slices.Equal(same, variables) {
			t.Errorf("read again: %q, want %q: %v", same, variables, err)
		}
	})
}
