package deploy_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("write", false, "write what helm renders into helm/testdata")

// The chart's renderings, by the values that they are made of, the kind of workload that runs usher there, and the part that is
// asked whether it is ready.
var renderings = map[string]struct{ kind, part string }{
	"file":         {"StatefulSet", "gate"},
	"postgres":     {"Deployment", "gate"},
	"entitlements": {"Deployment", "entitlements"},
	"outbound":     {"Deployment", "outbound"},
}

// What the chart renders is kept beside it, so that a change of it can be read, and so that it
// goes through the same checks as the manifests, also where there is no helm.
// TestDeploymentsAreAccepted reads its settings.
func TestChart(t *testing.T) {
	for name, want := range renderings {
		t.Run(name, func(t *testing.T) {
			all := objects(t, read(t, "helm/testdata/"+name+".yaml"))
			tryService(t, all, want.kind, want.part)
			w := all.one(t, want.kind).Spec
			if one := w.Replicas == 1; one != (name == "file") || one != (len(w.Claims) == 1) {
				t.Errorf("%d replicas, %d volumes", w.Replicas, len(w.Claims))
			}
			if name == "postgres" {
				all.one(t, "Ingress")
				all.one(t, "PodMonitor")
				all.one(t, "NetworkPolicy")
			}
		})
	}
}

// installed finds a tool, or skips the test. .ci/run has it, and lets none be skipped.
func installed(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed: what it renders is not compared", program)
	}
	return path
}

func TestChartIsRenderedSo(t *testing.T) {
	helm := installed(t, "helm")
	for name := range renderings {
		values := "helm/usher/ci/" + name + "-values.yaml"
		if out, err := exec.Command(helm, "lint", "--strict", "helm/usher", "-f", values).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		got, err := template(helm, "-f", values)
		if err != nil {
			t.Fatalf("%v: %s", err, got)
		}
		golden := "helm/testdata/" + name + ".yaml"
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, read(t, golden)) {
			t.Errorf("%s is not what the chart renders; with helm at hand, run: go test ./deploy -run Chart -write", golden)
		}
	}
}

func template(helm string, args ...string) ([]byte, error) {
	return exec.Command(helm, append([]string{"template", "billing-usher", "helm/usher", "--namespace", "billing", "--kube-version", "1.31.0"}, args...)...).CombinedOutput()
}

// Values that would make an usher that does not start, or one that loses webhooks, are
// refused, and the refusal names the value.
func TestChartRefuses(t *testing.T) {
	helm := installed(t, "helm")
	const (
		image        = "image.repository=registry.example.com/usher"
		receiver     = image + ",receiver.url=http://r:3000"
		postgres     = receiver + ",inbox.type=postgres,inbox.postgres.url=postgres://usher@db/usher"
		entitlements = image + ",entitlements.enabled=true"
		outbound     = image + ",outbound.baseURL=https://billing.example.com,outbound.clientID=app"
	)
	for _, set := range []string{receiver, postgres, entitlements, outbound, receiver + ",replicas=1"} {
		if out, err := template(helm, "--set", set); err != nil || strings.Contains(string(out), "kind: NetworkPolicy") {
			t.Errorf("%s: %v: %s", set, err, out)
		}
	}
	for set, want := range map[string]string{
		"receiver.url=http://r:3000":                "/image/repository",
		image:                                       "nothing to run: set receiver.url",
		receiver + ",replicas=2":                    "replicas: an inbox in a file is for one",
		receiver + ",inbox.type=postgres":           "inbox.postgres needs its address",
		postgres + ",inbox.postgres.secret.name=db": "inbox.postgres needs its address",
		receiver + ",inbox.postgres.url=postgres://usher:t0psecret@db/u": "/inbox/postgres/url",
		receiver + ",inbox.type=none":                                    "/inbox/type",
		receiver + ",replica=2":                                          "'replica' not allowed",
		receiver + ",shutdown.delay=5s":                                  "/shutdown/delay",
		receiver + ",ingress.enabled=true":                               "/ingress/host",
		outbound + ",ingress.enabled=true,ingress.host=h":                "ingress.enabled is for webhooks",
		receiver + ",gate.enabled=false":                                 "gate.enabled is false",
		entitlements + ",gate.enabled=false":                             "entitlements then need inbox.type postgres",
		receiver + ",secret.keys.adminToken=":                            "/secret/keys/adminToken",
		receiver + ",secret.keys.webhookToken=":                          "webhookToken or hmacSecret",
		entitlements + ",secret.keys.entitlementsKey=":                   "secret.keys.entitlementsKey",
		outbound + ",secret.keys.outboundKey=":                           "secret.keys.outboundKey",
		image + ",outbound.baseURL=https://billing.example.com":          "outbound.clientID",
		receiver + ",settings.USHER_WEBHOOK_TOKEN=t0psecret":             "USHER_WEBHOOK_TOKEN",
		receiver + ",settings.USHER_WEBHOOK_INBOX=file:/elsewhere":       "USHER_WEBHOOK_INBOX",
		receiver + ",settings.usher_webhook_types=x":                     "usher_webhook_types",
		receiver + ",networkPolicy.enabled=true":                         "networkPolicy.egress is empty",
		postgres + ",replicas=3,podDisruptionBudget.minAvailable=3":      "podDisruptionBudget.minAvailable must be less",
	} {
		out, err := template(helm, "--set", set)
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want an error with %q:\n%s", set, err, want, out)
		}
	}
}

// The sidecar, added by kustomize to a Deployment that knows nothing of usher: podinfo's, as
// its authors publish it, beside its autoscaler and Service.
func TestSidecarComponent(t *testing.T) {
	kustomize := installed(t, "kustomize")
	const module = "github.com/stefanprodan/podinfo@v1.8.1-0.20250910200901-e86405a8674e"
	download := exec.Command("go", "mod", "download", "-json", module)
	download.Dir = t.TempDir() // not in our module, whose go.sum it is not in
	out, err := download.Output()
	var podinfo struct{ Dir string }
	if err != nil || json.Unmarshal(out, &podinfo) != nil {
		t.Skipf("%s can't be downloaded, the component is not tried: %v: %s", module, err, out)
	}
	dir := t.TempDir()
	for folder, from := range map[string]string{"podinfo": filepath.Join(podinfo.Dir, "kustomize"), "sidecar": "kustomize/sidecar"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	const kustomization = `
resources: [podinfo]
components: [sidecar]
configMapGenerator:
  - name: usher-sidecar
    literals: [USHER_BASE_URL=https://billing.example.com, USHER_CLIENT_ID=my-client-id]
images:
  - {name: registry.example.com/usher, newTag: v9.9.9}
`
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err = exec.Command(kustomize, "build", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := objects(t, out).one(t, "Deployment").Spec.Template.Spec
	trySidecar(t, p)
	if len(p.Containers) != 1 || p.Containers[0].Name != "podinfod" || p.Containers[0].ReadinessProbe == nil {
		t.Errorf("podinfo's own container: %+v", p.Containers)
	}
	for _, want := range []string{"image: registry.example.com/usher:v9.9.9", "USHER_CLIENT_ID: my-client-id", "name: usher-sidecar-"} { // with its hash
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
