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

	"go.yaml.in/yaml/v3"

	"usher/internal/command"
	"usher/internal/testkit"
)

// What compose.cluster.yaml says, done without Docker: three NATS servers and HAProxy with
// the files that it mounts, and three ushers with its settings. Then an usher and a NATS
// server are taken away, and webhooks still arrive.
func TestComposeCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a cluster takes its time: not in short mode")
	}
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("haproxy is not installed: compose.cluster.yaml is not tried")
	}
	var file composition
	if err := yaml.Unmarshal(read(t, "compose.cluster.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	c := newComposedCluster(t, &file)

	servers := c.startServers(t, testkit.Build(t, "github.com/nats-io/nats-server/v2"))
	var stops []func()
	for i := range 3 {
		stops = append(stops, c.startUsher(t, i))
	}
	config := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(config, []byte(c.of[0].Replace(string(read(t, "compose/haproxy.cfg")))), 0o644); err != nil {
		t.Fatal(err)
	}
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

	args := []string{"-every", "50ms"}
	for _, arg := range file.Services["sandbox"].Command {
		args = append(args, c.of[0].Replace(arg))
	}
	world := spawn(t, exec.Command(testkit.Build(t, "usher/examples/sandbox"), args...))
	delivered := func() int { return strings.Count(world.String(), "receiver: /provisioning") }
	testkit.Eventually(t, "delivered", func() bool { return strings.Contains(world.String(), "200 queued") && delivered() >= 3 })

	stops[0]() // the first is likely to be the one that delivers
	if err := servers[1].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	before := delivered()
	testkit.Eventually(t, "delivered by the others", func() bool { return delivered() >= before+3 })
}

// composedCluster is where the services of compose.cluster.yaml are on this machine.
type composedCluster struct {
	of    [3]*strings.Replacer // for what belongs to usher-i or nats-i
	admin [3]string
	env   [3][]string
}

func newComposedCluster(t *testing.T, file *composition) *composedCluster {
	t.Helper()
	c := new(composedCluster)
	receiver, front := testkit.FreeAddress(t), testkit.FreeAddress(t)
	common := []string{
		"0.0.0.0:9001", receiver, "sandbox:9001", receiver, "127.0.0.1:9000", testkit.FreeAddress(t),
		"haproxy:8090", front, "bind :8090", "bind " + front, "SHUTDOWN_DELAY=3s", "SHUTDOWN_DELAY=100ms",
	}
	for name, secret := range file.Secrets {
		common = append(common, "/run/secrets/"+name, secret.File)
	}
	var own [3][]string
	for i := range 3 {
		gate, client, route := testkit.FreeAddress(t), testkit.FreeAddress(t), testkit.FreeAddress(t)
		c.admin[i] = testkit.FreeAddress(t)
		_, port, _ := strings.Cut(c.admin[i], ":")
		common = append(common, // in HAProxy's file each usher has its own admin port here
			fmt.Sprintf(" usher-%d:8090", i), " "+gate+" port "+port, fmt.Sprintf("nats-%d:4222", i), client, fmt.Sprintf("nats-%d:6222", i), route)
		own[i] = []string{"0.0.0.0:8090", gate, "0.0.0.0:9095", c.admin[i], "0.0.0.0:4222", client, "0.0.0.0:6222", route, "/data", t.TempDir()}
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

func (c *composedCluster) startServers(t *testing.T, program string) (servers [3]*exec.Cmd) {
	t.Helper()
	for i := range 3 {
		config := filepath.Join(t.TempDir(), "nats.conf")
		if err := os.WriteFile(config, []byte(c.of[i].Replace(string(read(t, "compose/nats.conf")))), 0o644); err != nil {
			t.Fatal(err)
		}
		servers[i] = exec.Command(program, "--config", config)
		servers[i].Env = append(os.Environ(), fmt.Sprint("NODE=nats-", i))
		spawn(t, servers[i])
	}
	return servers
}

// startUsher runs one, which is started again while the servers can't be reached yet: that
// is what "restart: unless-stopped" does. It returns what ends it.
func (c *composedCluster) startUsher(t *testing.T, i int) func() {
	t.Helper()
	return testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) (code int) {
		for ctx.Err() == nil {
			code = usher(ctx, c.env[i], stdout, stderr)
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
