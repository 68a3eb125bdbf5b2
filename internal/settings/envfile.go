package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"usher/internal/text"
)

// maxEnvFile limits what is read of a file of settings: an endless one must not fill the memory.
const maxEnvFile = 1 << 20

// WithFiles returns environ with what files of settings say, one NAME=VALUE on a line, as systemd
// reads an EnvironmentFile=. A later file wins over an earlier one, and environ over all of them;
// an empty variable in environ counts as not set, here too. The error is [Problems].
func WithFiles(environ []string, files ...string) ([]string, error) {
	var all []string
	var problems Problems
	for _, file := range files {
		variables, err := readEnvFile(file)
		if err != nil {
			problems = append(problems, text.Visible("--env-file "+file+": "+err.Error()))
		}
		all = append(all, variables...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	said := Environment(all)
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); value != "" || said[name] == "" {
			all = append(all, kv)
		}
	}
	return all, nil
}

func readEnvFile(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		if path := new(fs.PathError); errors.As(err, &path) {
			err = path.Err // the caller names the file
		}
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(content) > maxEnvFile:
		return nil, fmt.Errorf("it is larger than %d bytes: not a file of settings", maxEnvFile)
	}
	return parseEnvFile(string(content))
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// parseEnvFile returns the variables of a file as os.Environ does. Nothing is expanded. The error
// names the bad lines and shows nothing of them: there may be a secret in them.
func parseEnvFile(content string) ([]string, error) {
	var variables, bad []string
	n := 0
	for line := range strings.Lines(strings.TrimPrefix(content, "\ufeff")) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(strings.TrimPrefix(name, "export "))
		if !ok || !variableName.MatchString(name) || strings.Contains(value, "\x00") {
			bad = append(bad, fmt.Sprint(n))
			continue
		}
		variables = append(variables, name+"="+unquote(strings.TrimSpace(value)))
	}
	switch len(bad) {
	case 0:
		return variables, nil
	case 1:
		return nil, fmt.Errorf("line %s is not NAME=VALUE", bad[0])
	}
	return nil, fmt.Errorf("lines %s are not NAME=VALUE", strings.Join(bad, ", "))
}

// unquote takes one pair of quotes off that stands around a whole value.
func unquote(value string) string {
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		return value[1 : n-1]
	}
	return value
}
