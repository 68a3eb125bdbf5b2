package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"usher/internal/secret"
	"usher/internal/text"
)

// WithFiles returns environ together with the variables in files, each read as systemd reads an EnvironmentFile=. A
// later file wins over an earlier one, and environ wins over all files. An empty variable in environ counts as not
// set. The error is [Problems].
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
	inFiles := Environment(all)
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); value != "" || inFiles[name] == "" {
			all = append(all, kv)
		}
	}
	return all, nil
}

func readEnvFile(path string) ([]string, error) {
	content, err := secret.ReadFile(path)
	if path := new(fs.PathError); errors.As(err, &path) {
		return nil, path.Err // the caller names the file
	}
	return parseEnvFile(string(content))
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// parseEnvFile returns the variables of a file in the form of os.Environ. It reads them as systemd does
// (parse_env_file_internal in its env-file.c), but for a line that systemd ignores: that is an error, because it may
// have been meant as a check. The error has the numbers of such lines, not what they hold: that may be a secret.
func parseEnvFile(content string) ([]string, error) {
	var variables, bad []string
	rest := strings.ReplaceAll(strings.TrimPrefix(content, "\ufeff"), "\r\n", "\n") + "\n"
	for line := 1; rest != ""; {
		first, next, _ := strings.Cut(rest, "\n")
		first = strings.TrimSpace(first)
		if first != "" && first[0] != '#' && first[0] != ';' {
			name, _, ok := strings.Cut(first, "=")
			name = strings.TrimSpace(name)
			if ok = ok && variableName.MatchString(name); ok {
				var value string
				_, value, _ = strings.Cut(rest, "=")
				value, next, ok = envValue(value)
				ok = ok && !strings.Contains(value, "\x00")
				variables = append(variables, name+"="+value)
			}
			if !ok {
				bad = append(bad, fmt.Sprint(line))
			}
		}
		line += strings.Count(rest[:len(rest)-len(next)], "\n")
		rest = next
	}
	if bad != nil {
		return nil, fmt.Errorf("lines that are not NAME=VALUE, or whose quote does not end: %s", strings.Join(bad, ", "))
	}
	return variables, nil
}

// envValue returns the value that s begins with, and what follows its line. Quotes, and a backslash at the end of a
// line, take the value on to the next line.
func envValue(s string) (value, rest string, ok bool) {
	var out []byte
	end := 0       // of the value without the white space at its end
	var quote byte // that is open, or 0
	plain := false // something stands outside of quotes: from there on quotes are part of the value
	for i := 0; i < len(s); i++ {
		c := s[i]
		escaped := c == '\\' && quote != '\'' && i+1 < len(s)
		if escaped {
			i++
			c = s[i]
		}
		switch {
		case escaped && c == '\n':
		case escaped && quote == '"' && !strings.ContainsRune("\"\\`$", rune(c)):
			out = append(out, '\\', c)
		case escaped:
			out, plain = append(out, c), plain || quote == 0
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			out = append(out, c)
		case c == '\n':
			return string(out[:end]), s[i+1:], true
		case !plain && (c == '"' || c == '\''):
			quote = c
		case c == ' ' || c == '\t':
			if plain {
				out = append(out, c)
			}
			continue
		default:
			out, plain = append(out, c), true
		}
		end = len(out)
	}
	return "", "", false
}
