package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"usher/internal/command"
	"usher/internal/trial"
)

// What compose.yaml says, done without Docker: the same commands and settings as
// processes, with the services' names, the secrets and the volume replaced by what
// stands for them on one machine.
func TestCompose(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: compose.yaml's app can't be run")
	}
	var file struct {
		Services map[string]struct {
			Environment map[string]string
			Command     []string
		}
		Secrets map[string]struct{ File string }
	}
	content, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &file); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	local, admin, billing, receiver, gate := trial.FreeAddress(t), trial.FreeAddress(t), trial.FreeAddress(t), trial.FreeAddress(t), trial.FreeAddress(t)
	here := []string{
		"0.0.0.0:9000", billing, "sandbox:9000", billing, "0.0.0.0:9001", receiver, "sandbox:9001", receiver,
		"0.0.0.0:8090", gate, "usher:8090", gate, "file:/var/lib/usher/", "file:" + dir + "/",
	}
	for name, secret := range file.Secrets {
		here = append(here, "/run/secrets/"+name, secret.File)
	}
	replace := strings.NewReplacer(here...)

	sandbox := filepath.Join(dir, "sandbox")
	if out, err := exec.Command("go", "build", "-o", sandbox, "usher/examples/sandbox").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	args := []string{"-every", "50ms"}
	for _, arg := range file.Services["sandbox"].Command {
		args = append(args, replace.Replace(arg))
	}
	world := exec.Command(sandbox, args...)
	var seen, log, printed trial.Output
	defer func() {
		if t.Failed() {
			t.Logf("the sandbox:\n%susher:\n%sthe app:\n%s", &seen, &log, &printed)
		}
	}()
	world.Stdout, world.Stderr = &seen, &seen
	if err := world.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = world.Process.Kill(); _ = world.Wait() }()

	env := []string{"USHER_LISTEN=" + local, "USHER_ADMIN_LISTEN=" + admin}
	for name, value := range file.Services["usher"].Environment {
		env = append(env, name+"="+replace.Replace(value))
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	run := func(ctx context.Context, args ...string) int {
		return command.Main(ctx, command.Process{Args: args, Environ: env, Stdin: strings.NewReader(""), Stdout: &log, Stderr: &log})
	}
	go func() { ended <- run(ctx) }()
	defer func() { stop(); <-ended }()
	trial.Eventually(t, "healthy", func() bool { return run(ctx, "healthcheck") == 0 })

	// The app's loop goes on while the script succeeds; a tenth of a second for its 5.
	script := strings.NewReplacer("/app/", "../examples/accounts/", "python ", python+" ", "sleep 5", "sleep 0.1").Replace(file.Services["app"].Command[2])
	app := exec.Command("sh", "-c", script)
	app.Env = []string{"PATH=" + os.Getenv("PATH"), "USHER_URL=http://" + local + "/graphql"}
	app.Stdout, app.Stderr = &printed, &printed
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Process.Kill(); _ = app.Wait() }()
	trial.Eventually(t, "called twice", func() bool { return strings.Count(printed.String(), "1001 Acme GmbH") >= 2 })
	trial.Eventually(t, "delivered", func() bool {
		s := seen.String()
		return strings.Contains(s, "200 queued") && strings.Contains(s, "200 duplicate") && strings.Count(s, "receiver: /provisioning") >= 2
	})
}
