package examples

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"usher/internal/testkit"
)

// Each gets the same accounts, with letters beyond ASCII there and back; and says
// what is wrong where nobody listens, or where the service rejects.
func TestAccounts(t *testing.T) {
	t.Parallel()
	const want = "1027 Brücke GmbH\n1057 Brücke Ltd\n1087 Brücke Logistics\n"
	env := testkit.NewService(t).Environ("USHER_LOG_LEVEL=")
	url := start(t, env).URL(t, "main") + "/graphql"
	writing := append(env[:len(env):len(env)], "USHER_SCOPE=standard:write") // may not see accounts
	rejecting := start(t, writing).URL(t, "main") + "/graphql"
	for _, tc := range []struct {
		name, needs string
		command     []string
	}{
		{"curl", "curl", []string{"./accounts/accounts.sh"}},
		{"Python", "python3", []string{"python3", "accounts/accounts.py"}},
		{"PHP", "php", []string{"php", "accounts/accounts.php"}},
		{"Perl", "perl", []string{"perl", "accounts/accounts.pl"}},
		{"Java", "java", []string{"java", "Accounts"}},
		{"Node", "node", []string{"node", "accounts/accounts.mjs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			needs(t, tc.needs)
			command := compiled(t, tc.command)
			out, err := run(env, url, append(command, "Brücke")...)
			if err != nil || table(out) != want {
				t.Errorf("%v, got\n%s", err, out)
			}
			if out, err := run(env, "http://127.0.0.1:1/graphql", command...); err == nil || !strings.Contains(out, "127.0.0.1") {
				t.Errorf("nobody listens there: %v %s", err, out)
			}
			// What GraphQL rejects comes with a 200: who reads no JSON shows it as it is.
			if out, err := run(env, rejecting, command...); !strings.Contains(out, "Missing required permission") || err == nil && !strings.Contains(out, `"errors"`) {
				t.Errorf("invalid: %v %s", err, out)
			}
			if out, err := run(env, url+"/elsewhere", command...); err == nil || !strings.Contains(out, "NOT_FOUND") {
				t.Errorf("no such page: %v %s", err, out)
			}
		})
	}
	t.Run("bash with usher exec", func(t *testing.T) {
		t.Parallel()
		needs(t, "bash")
		needs(t, "curl")
		exec := []string{testkit.Binary(t), "exec", "--", "./accounts/report.sh", "Brücke"}
		if out, err := run(env, "", exec...); err != nil || table(out) != want {
			t.Errorf("%v, got\n%s", err, out)
		}
		if out, err := run(writing, "", exec...); err == nil || !strings.Contains(out, "Missing required permission") {
			t.Errorf("invalid: %v %s", err, out)
		}
		invalid := append(env[:len(env):len(env)], "USHER_CLIENT_SECRET=wrong")
		if out, err := run(invalid, "", exec...); err == nil || !strings.Contains(out, "invalid_client") {
			t.Errorf("wrong secret: %v %s", err, out)
		}
	})
}

// run runs an example as a user would, and returns all that it printed.
func run(env []string, url string, command ...string) (string, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(env[:len(env):len(env)], "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"), "LC_ALL=C.UTF-8", "USHER_URL="+url)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// table makes lines of an answer that was printed as it came.
func table(out string) string {
	var answer struct {
		Data struct {
			Accounts struct{ Nodes []struct{ ID, Name string } }
		}
	}
	if json.Unmarshal([]byte(out), &answer) != nil {
		return out
	}
	var b strings.Builder
	for _, a := range answer.Data.Accounts.Nodes {
		b.WriteString(a.ID + " " + a.Name + "\n")
	}
	return b.String()
}
