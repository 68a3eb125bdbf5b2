package deploy_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"usher/internal/command"
	"usher/internal/testkit"
	"usher/internal/testkit/pgtest"
)

// What compose.cluster.yaml says, done without Docker: two PostgreSQL servers and HAProxy with
// the files that it mounts, and three ushers with its settings. Then both servers are stopped, and
// started in the wrong order. Then an usher and the primary are taken away and the standby is promoted: it has
// what the primary had confirmed, the primary that comes back follows it, and webhooks still arrive.
func TestComposeCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes its time: not in short mode")
	}
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not installed: compose.cluster.yaml is not tried")
	}
	file := readComposition(t, "compose.cluster.yaml")
	c := newComposedCluster(t, file)

	c.servers[0].Start()
	var stops []func()
	for i := range 3 {
		stops = append(stops, c.startUsher(t, i))
	}
	c.servers[1].Start()
	config := filepath.Join(t.TempDir(), "haproxy.cfg")
	write(t, config, []byte(c.of[0].Replace(string(read(t, "compose/haproxy.cfg")))), 0o644)
	spawn(t, exec.Command(haproxy, "-f", config))
	for i := range 3 {
		testkit.Eventually(t, fmt.Sprintf("usher-%d ready", i), func() bool { return status(c.admin[i], "/readyz/gate", "") == http.StatusOK })
		if code := status(c.admin[i], "/", ""); code != http.StatusUnauthorized {
			t.Errorf("the admin page answers %d without its token", code)
		}
		if code := status(c.admin[i], "/", "demo-admin-token"); code != http.StatusOK {
			t.Errorf("the admin page answers %d with its token", code)
		}
	}

	world := file.sandbox(t, c.of[0])
	delivered := func() int { return strings.Count(world.String(), "receiver: ") }
	testkit.Eventually(t, "delivered", func() bool { return strings.Contains(world.String(), "200 queued") && delivered() >= 3 })
	holds := func(s *pgtest.Server, sql, want string) {
		t.Helper()
		testkit.Eventually(t, sql+" is "+want, func() bool { return s.Exec(t, sql) == want })
	}
	holds(c.servers[0], "SHOW synchronous_standby_names", "*")
	holds(c.servers[1], "SELECT pg_is_in_recovery()", "t")
	password := strings.TrimSpace(string(read(t, "compose/inbox-password")))
	if _, err := asUsher(t, c.servers[0], "wrong", "SELECT 1"); err == nil {
		t.Error("a wrong password is accepted")
	}
	if _, err := asUsher(t, c.servers[0], password, "CREATE TABLE usher.a AS SELECT 1 AS n"); err != nil {
		t.Error(err)
	}

	c.servers[0].Stop()
	c.servers[1].Stop()
	c.servers[1].Start()
	c.servers[0].Start()
	holds(c.servers[0], "SELECT pg_is_in_recovery()", "f")
	holds(c.servers[1], "SELECT pg_is_in_recovery()", "t")
	before := delivered()
	testkit.Eventually(t, "delivered after a restart", func() bool { return delivered() >= before+3 })

	stops[0]()
	c.servers[0].Kill()
	c.servers[1].Run(t, "pg_ctl", "promote")
	before = delivered()
	testkit.Eventually(t, "delivered by the others", func() bool { return delivered() >= before+3 })
	c.servers[0].Start()
	holds(c.servers[0], "SELECT pg_is_in_recovery()", "t")
	holds(c.servers[1], "SELECT pg_is_in_recovery()", "f")
	holds(c.servers[1], "SHOW synchronous_standby_names", "*")
	if rows, err := asUsher(t, c.servers[1], password, "SELECT count(*) FROM usher.a"); err != nil || rows != "1" {
		t.Errorf("%s rows: %v", rows, err)
	}
	before = delivered()
	testkit.Eventually(t, "delivered with a standby", func() bool { return delivered() >= before+3 })
}

// asUsher runs a statement with usher's role over the network, and returns the first value of its first row.
func asUsher(t *testing.T, s *pgtest.Server, password, sql string) (value string, err error) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://usher:%s@%s/usher", password, s.Addr()))
	if err != nil {
		return "", err
	}
	defer conn.Close(t.Context())
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err == nil && len(results[0].Rows) > 0 {
		value = string(results[0].Rows[0][0])
	}
	return value, err
}

// composedCluster is where the services of compose.cluster.yaml are on this machine.
type composedCluster struct {
	of      [3]*strings.Replacer // for what belongs to usher-i
	admin   [3]string
	env     [3][]string
	servers [2]*pgtest.Server // postgres-i, not started yet
}

func newComposedCluster(t *testing.T, file *composition) *composedCluster {
	t.Helper()
	c := new(composedCluster)
	receiver, front := testkit.FreeAddress(t), testkit.FreeAddress(t)
	common := []string{
		"0.0.0.0:9001", receiver, "sandbox:9001", receiver, "127.0.0.1:9000", testkit.FreeAddress(t),
		"haproxy:8090", front, "bind :8090", "bind " + front, "SHUTDOWN_DELAY=3s", "SHUTDOWN_DELAY=100ms",
	}
	for i := range c.servers {
		c.servers[i] = pgtest.Prepare(t)
		common = append(common, fmt.Sprintf("postgres-%d:5432", i), c.servers[i].Addr())
	}
	for i, s := range c.servers {
		own := append([]string{
			"/var/lib/postgresql/data/usher", filepath.Join(s.Dir(), "data"),
			"-h 0.0.0.0 -p 5432", fmt.Sprintf("-h 127.0.0.1 -p %d -k %s -c fsync=off", s.Port(), s.Dir()),
		}, common...)
		for name, secret := range file.Secrets {
			own = append(own, "/run/secrets/"+name, filepath.Join(s.Dir(), name))
			write(t, filepath.Join(s.Dir(), name), read(t, secret.File), 0o644)
		}
		here := strings.NewReplacer(own...)
		script := filepath.Join(s.Dir(), "postgres.sh")
		write(t, script, []byte(here.Replace(string(read(t, "compose/postgres.sh")))), 0o755)
		var env []string
		for name, value := range file.Services[fmt.Sprint("postgres-", i)].Environment {
			env = append(env, name+"="+here.Replace(value))
		}
		s.Script(env, "sh", script)
	}

	for name, secret := range file.Secrets {
		common = append(common, "/run/secrets/"+name, secret.File)
	}
	var own [3][]string
	for i := range 3 {
		gate := testkit.FreeAddress(t)
		c.admin[i] = testkit.FreeAddress(t)
		_, port, _ := strings.Cut(c.admin[i], ":")
		// In HAProxy's file each usher has its own admin port here.
		common = append(common, fmt.Sprintf(" usher-%d:8090", i), " "+gate+" port "+port)
		own[i] = []string{"0.0.0.0:8090", gate, "0.0.0.0:9095", c.admin[i]}
	}
	for i := range 3 {
		c.of[i] = strings.NewReplacer(append(own[i], common...)...)
		for name, value := range file.Services[fmt.Sprint("usher-", i)].Environment {
			c.env[i] = append(c.env[i], c.of[i].Replace(name+"="+value))
		}
		if len(c.env[i]) < 5 {
			t.Fatalf("usher-%d has only %q", i, c.env[i])
		}
	}
	return c
}

func write(t *testing.T, path string, content []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, content, mode); err != nil {
		t.Fatal(err)
	}
}

// startUsher runs one, which is started again while the servers can't be reached yet: that
// is what "restart: unless-stopped" does. It returns what ends it.
func (c *composedCluster) startUsher(t *testing.T, i int) func() {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) (code int) {
		for code != 2 && ctx.Err() == nil { // 2: a setting is wrong, which stays so
			code = usher(ctx, c.env[i], stdout, stderr)
			time.Sleep(100 * time.Millisecond) // as Docker does
		}
		return code
	}).End
}

// usher runs one to its end.
func usher(ctx context.Context, env []string, stdout, stderr io.Writer, args ...string) int {
	return command.Main(ctx, command.Process{Args: args, Environ: env, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: stderr})
}

// status is that of a page of an admin port, or 0.
func status(admin, page, token string) int {
	req, err := http.NewRequest(http.MethodGet, "http://"+admin+page, nil)
	if err != nil {
		return 0
	}
	if token != "" {
		req.SetBasicAuth("anybody", token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}
