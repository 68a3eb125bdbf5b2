package deploy_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"usher/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// composition is as much of compose.yaml as is looked at here.
type composition struct {
	Services map[string]struct {
		Environment map[string]string
		Command     []string
	}
	Secrets map[string]struct{ File string }
}

func readComposition(t *testing.T, name string) *composition {
	t.Helper()
	file := new(composition)
	if err := yaml.Unmarshal(read(t, name), file); err != nil {
		t.Fatal(err)
	}
	return file
}

// What compose.yaml says, done without Docker: the same commands and settings as
// processes, with the services' names, the secrets and the volume replaced by what
// stands for them on one machine.
func TestCompose(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: compose.yaml's app is not tried")
	}
	file := readComposition(t, "compose.yaml")
	local, admin := testkit.FreeAddress(t), testkit.FreeAddress(t)
	here := file.onThisMachine(t, admin)

	world := file.sandbox(t, here)

	env := []string{"USHER_LISTEN=" + local}
	for name, value := range file.Services["usher"].Environment {
		env = append(env, name+"="+here.Replace(value))
	}
	testkit.Run(t, func(ctx context.Context, stdout, stderr io.Writer) int { return usher(ctx, env, stdout, stderr) })
	testkit.Eventually(t, "healthy", func() bool { return usher(t.Context(), env, io.Discard, io.Discard, "healthcheck") == 0 })
	if without, with := status(admin, "/", ""), status(admin, "/", "demo-admin-token"); without != 401 || with != 200 {
		t.Errorf("the admin page answers %d without its token and %d with it", without, with)
	}

	// The app's loop goes on while the script succeeds; a tenth of a second for its 5.
	script := strings.NewReplacer("/app/", "../examples/accounts/", "python ", python+" ", "sleep 5", "sleep 0.1").Replace(file.Services["app"].Command[2])
	loop := exec.Command("sh", "-c", script)
	loop.Env = []string{"PATH=" + os.Getenv("PATH"), "USHER_URL=http://" + local + "/graphql"}
	app := spawn(t, loop)
	testkit.Eventually(t, "called twice", func() bool { return strings.Count(app.String(), "1001 Acme GmbH") >= 2 })
	testkit.Eventually(t, "delivered", func() bool {
		s := world.String()
		return strings.Contains(s, "200 queued") && strings.Contains(s, "200 duplicate") && strings.Count(s, "receiver: ") >= 2
	})
}

// sandbox runs the service of that name, which sends more often here.
func (c *composition) sandbox(t *testing.T, here *strings.Replacer) *testkit.Output {
	t.Helper()
	var args []string
	for _, arg := range c.Services["sandbox"].Command {
		args = append(args, here.Replace(arg))
	}
	args = append(args, "--every", "50ms")
	return &testkit.Run(t, func(ctx context.Context, out, _ io.Writer) int { return usher(ctx, nil, out, out, args...) }).Stdout
}

// onThisMachine replaces what is somewhere else in a container.
func (c *composition) onThisMachine(t *testing.T, admin string) *strings.Replacer {
	t.Helper()
	billing, receiver, gate := testkit.FreeAddress(t), testkit.FreeAddress(t), testkit.FreeAddress(t)
	here := []string{
		"0.0.0.0:9000", billing, "sandbox:9000", billing, "0.0.0.0:9001", receiver, "sandbox:9001", receiver,
		"0.0.0.0:8090", gate, "usher:8090", gate, "file:/var/lib/usher/", "file:" + t.TempDir() + "/",
		"0.0.0.0:9095", admin,
	}
	for name, secret := range c.Secrets {
		here = append(here, "/run/secrets/"+name, secret.File)
	}
	return strings.NewReplacer(here...)
}

// spawn runs a program until the test ends.
func spawn(t *testing.T, cmd *exec.Cmd) *testkit.Output {
	t.Helper()
	out := new(testkit.Output)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s printed:\n%s", cmd, out)
		}
	})
	return out
}
