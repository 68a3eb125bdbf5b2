package deploy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"usher/internal/settings"
)

var update = flag.Bool("write", false, "write what helm renders into helm/testdata")

// The chart's renderings, by the values that they are made of: the workloads, and which part of each is
// asked whether it is ready.
var renderings = map[string]map[string]string{
	"file":              {"billing-usher": "gate"},
	"file-entitlements": {"billing-gateway": "entitlements"}, // it has no second pod that could take the webhooks
	"postgres":          {"billing-usher": "gate", "billing-usher-entitlements": "entitlements", "billing-usher-outbound": "outbound"},
}

// What the chart renders is kept beside it, so that a change of it can be read, and so that it
// goes through the same checks as the manifests, also where there is no helm.
// TestDeploymentsAreAccepted reads its settings. What is in none of these is linted.
func TestChart(t *testing.T) {
	for name, parts := range renderings {
		t.Run(name, func(t *testing.T) {
			all := objects(t, read(t, "helm/testdata/"+name+".yaml"))
			tryServices(t, all, parts)
			for _, w := range all {
				if file := strings.HasPrefix(name, "file"); w.Kind == "Deployment" && file || w.Kind == "StatefulSet" && (!file || w.Spec.Replicas != 1 || len(w.Spec.Claims) != 1) {
					t.Errorf("%s %s: %d replicas, %d volumes", w.Kind, w.Metadata.Name, w.Spec.Replicas, len(w.Spec.Claims))
				}
				ids := w.Spec.Template.Spec.SecurityContext
				if assigned := name == "file-entitlements"; len(w.Spec.Template.Spec.Containers) > 0 && (assigned != (ids.RunAsUser == nil) || assigned != (ids.FSGroup == nil)) {
					t.Errorf("%s: user %v, group %v", w.Metadata.Name, ids.RunAsUser, ids.FSGroup)
				}
				// A database proxy is there before usher, and for as long as usher writes.
				if proxies := w.Spec.Template.Spec.InitContainers; len(proxies) > 0 && proxies[0].RestartPolicy != "Always" || (len(proxies) > 0) != (name == "postgres" && parts[w.Metadata.Name] != "outbound" && w.Kind == "Deployment") {
					t.Errorf("%s: %d containers come first", w.Metadata.Name, len(proxies))
				}
			}
			if name == "postgres" {
				all.one(t, "Ingress")
				all.one(t, "ServiceAccount")
				// Prometheus sends the whole content of that key, and must not be able to act.
				if got := all.one(t, "PodMonitor").Spec.Endpoints[0].Authorization.Credentials; got.Name != "billing-webhooks" || got.Key != "admin-read-token" {
					t.Errorf("Prometheus gets %+v", got)
				}
			}
		})
	}
}

// The chart makes a PrometheusRule of the alerts, as they are.
func TestChartHasTheAlerts(t *testing.T) {
	helm := installed(t, "helm")
	out, err := template(helm, "-f", "helm/usher/ci/file-values.yaml", "-s", "templates/prometheusrule.yaml", "--set", "prometheusRule.enabled=true")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var rule struct {
		Kind string
		Spec any
	}
	var want any
	if err := errors.Join(yaml.Unmarshal(out, &rule), yaml.Unmarshal(read(t, "helm/usher/files/alerts.yaml"), &want)); err != nil {
		t.Fatal(err)
	}
	if rule.Kind != "PrometheusRule" || !reflect.DeepEqual(rule.Spec, want) {
		t.Errorf("other alerts than those of files/alerts.yaml:\n%s", out)
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
	all, err := filepath.Glob("helm/usher/ci/*-values.yaml")
	if err != nil || len(all) < len(renderings) {
		t.Fatalf("%q: %v", all, err)
	}
	for _, values := range all {
		if out, err := exec.Command(helm, "lint", "--strict", "helm/usher", "-f", values).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	for name := range renderings {
		got, err := template(helm, "-f", "helm/usher/ci/"+name+"-values.yaml")
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
	for _, set := range []string{receiver, postgres, entitlements, outbound, receiver + ",gate.replicas=1", receiver + ",secret.keys.adminReadToken=read,podMonitor.enabled=true"} {
		if out, err := template(helm, "--set", set); err != nil || strings.Contains(string(out), "kind: NetworkPolicy") {
			t.Errorf("%s: %v: %s", set, err, out)
		}
	}
	for set, want := range map[string]string{
		"receiver.url=http://r:3000":      "/image/repository",
		image:                             "nothing to run: set receiver.url",
		receiver + ",gate.replicas=2":     "gate.replicas: an inbox in a file is for one",
		receiver + ",inbox.type=postgres": "inbox.postgres needs its address",
		receiver + ",inbox.postgres.url=postgres://usher:t0psecret@db/u": "/inbox/postgres/url",
		receiver + ",replica=2":                              "'replica' not allowed",
		receiver + ",ingress.enabled=true":                   "/ingress/host",
		receiver + ",gate.enabled=false":                     "gate.enabled is false",
		entitlements + ",gate.enabled=false":                 "entitlements then need inbox.type postgres",
		receiver + ",secret.keys.webhookToken=":              "webhookToken or signingKey",
		entitlements + ",secret.keys.entitlementsKey=":       "secret.keys.entitlementsKey",
		receiver + ",settings.USHER_WEBHOOK_TOKEN=t0psecret": "USHER_WEBHOOK_TOKEN",
		receiver + ",networkPolicy.enabled=true":             "networkPolicy.webhooksFrom is empty",
		postgres + ",gate.replicas=3,gate.minAvailable=3":    "gate.minAvailable must be less",
		receiver + ",podMonitor.enabled=true":                "podMonitor.enabled needs secret.keys.adminReadToken",
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
	for folder, from := range map[string]string{"podinfo": filepath.Join(podinfo.Dir, "kustomize"), "sidecar": "kustomize/sidecar", "sidecar-metrics": "kustomize/sidecar-metrics"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	const kustomization = `
resources: [podinfo]
components: [sidecar, sidecar-metrics]
configMapGenerator:
  - name: usher-sidecar
    literals: [USHER_BASE_URL=https://billing.example.com, USHER_CLIENT_ID=my-client-id]
images:
  - {name: registry.example.com/usher, newName: registry.your.company/usher, newTag: v9.9.9}
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
	env := []string{"USHER_BASE_URL=https://billing.example.com", "USHER_CLIENT_ID=my-client-id"} // of the ConfigMap
	for _, e := range p.InitContainers[0].Env {
		env = append(env, e.Name+"="+e.Value)
	}
	if s, err := settings.Read(withFiles(t, env)); err != nil || s.Admin.Listen != "0.0.0.0:9095" || s.Admin.ReadToken == nil {
		t.Errorf("Prometheus cannot read the metrics of the sidecar: %v", err)
	}
	if len(p.Containers) != 1 || p.Containers[0].Name != "podinfod" || p.Containers[0].ReadinessProbe == nil {
		t.Errorf("podinfo's own container: %+v", p.Containers)
	}
	// The secret's name has its hash.
	for _, want := range []string{"image: registry.your.company/usher:v9.9.9", `usher-metrics: "yes"`, "USHER_CLIENT_ID: my-client-id", "name: usher-sidecar-"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
