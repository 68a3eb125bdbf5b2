package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"usher/internal/secret"
	"usher/internal/text"
)

// WithFiles returns environ together with the variables in files, which have one NAME=VALUE on a line, as
// systemd's EnvironmentFile= has. A later file wins over an earlier one, and environ wins over all files. An
// empty variable in environ counts as not set. The error is [Problems].
func WithFiles(environ []string, files ...string) ([]string, error) {
	var all []string
	var problems Problems
	for _, file := range files {
		variables, err := readEnvFile(file)
		if err != nil {
			problems = append(problems, text.Visible("--env-file "+file+": "+err.Error()))
		}
		all = append(setAside(all, variables), variables...)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	all = setAside(all, environ)
	inFiles := Environment(all)
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); value != "" || inFiles[name] == "" {
			all = append(all, kv)
		}
	}
	return all, nil
}

// setAside returns lower without the secrets that higher, which wins, has in the other spelling: X for
// X_FILE, or X_FILE for X.
func setAside(lower, higher []string) []string {
	won := Environment(higher)
	return slices.DeleteFunc(lower, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		other, file := strings.CutSuffix(name, "_FILE")
		if !file {
			other += "_FILE"
		}
		return strings.HasPrefix(name, "USHER_") && won[other] != ""
	})
}

func readEnvFile(path string) ([]string, error) {
	content, err := secret.ReadFile(path)
	if path := new(fs.PathError); errors.As(err, &path) {
		return nil, path.Err // the caller names the file
	}
	return parseEnvFile(string(content))
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// parseEnvFile returns the variables of a file in the form of os.Environ. It expands nothing. The error has
// the numbers of the bad lines, but not their content, which may be a secret.
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
	if bad != nil {
		return nil, fmt.Errorf("lines that are not NAME=VALUE: %s", strings.Join(bad, ", "))
	}
	return variables, nil
}

// unquote removes one pair of quotes around a whole value.
func unquote(value string) string {
	if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
		return value[1 : n-1]
	}
	return value
}
