package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// object is as much of a Kubernetes object as is looked at here.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Replicas     int
		MinAvailable int `yaml:"minAvailable"`
		Selector     any
		Template     struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
	}
}

type pod struct {
	Grace           int          `yaml:"terminationGracePeriodSeconds"`
	InitContainers  []*container `yaml:"initContainers"`
	Containers      []*container
	SecurityContext struct {
		RunAsNonRoot bool `yaml:"runAsNonRoot"`
	} `yaml:"securityContext"`
}

type mount struct {
	Path string `yaml:"mountPath"`
}

type probe struct {
	HTTPGet struct{ Path string } `yaml:"httpGet"`
}

type container struct {
	Name            string
	RestartPolicy   string `yaml:"restartPolicy"`
	Env             []struct{ Name, Value string }
	VolumeMounts    []mount `yaml:"volumeMounts"`
	StartupProbe    *probe  `yaml:"startupProbe"`
	ReadinessProbe  *probe  `yaml:"readinessProbe"`
	LivenessProbe   *probe  `yaml:"livenessProbe"`
	SecurityContext struct {
		ReadOnly   bool  `yaml:"readOnlyRootFilesystem"`
		Escalation *bool `yaml:"allowPrivilegeEscalation"`
	} `yaml:"securityContext"`
	Resources struct{ Limits map[string]string }
}

func TestManifests(t *testing.T) {
	sidecar := objects(t, "kubernetes/sidecar.yaml")["Deployment"].Spec.Template.Spec
	usher := sidecar.InitContainers[0]
	if usher.Name != "usher" || usher.RestartPolicy != "Always" {
		t.Errorf("%s with restartPolicy %q is no sidecar", usher.Name, usher.RestartPolicy)
	}
	tryPod(t, sidecar, usher)

	all := objects(t, "kubernetes/gateway.yaml")
	gateway := all["Deployment"].Spec
	tryPod(t, gateway.Template.Spec, gateway.Template.Spec.Containers[0])
	tryGateway(t, gateway.Template.Spec.Containers[0])
	if budget := all["PodDisruptionBudget"].Spec.MinAvailable; budget < 1 || budget >= gateway.Replicas {
		t.Errorf("of %d replicas %d must be available: none can be lost, or none can be drained", gateway.Replicas, budget)
	}
	for _, kind := range []string{"Service", "PodDisruptionBudget", "NetworkPolicy"} {
		if _, there := all[kind]; !there {
			t.Errorf("no %s", kind)
		}
	}
	service, _ := all["Service"].Spec.Selector.(map[string]any)
	for label, value := range service {
		if gateway.Template.Metadata.Labels[label] != value {
			t.Errorf("the Service selects %s=%s, which no pod has", label, value)
		}
	}
}

// tryGateway checks that a gateway holds nothing of the billing service, stays in the load
// balancer for as long as it takes webhooks, and is not restarted for what a restart does
// not help.
func tryGateway(t *testing.T, usher *container) {
	t.Helper()
	for _, e := range usher.Env {
		if strings.HasPrefix(e.Name, "USHER_CLIENT_") || e.Name == "USHER_BASE_URL" {
			t.Errorf("a gateway does not need %s", e.Name)
		}
	}
	for want, p := range map[string]*probe{"/readyz/gate": usher.ReadinessProbe, "/healthz": usher.StartupProbe} {
		if p == nil || p.HTTPGet.Path != want {
			t.Errorf("a probe asks %+v, want %s", p, want)
		}
	}
	if p := usher.LivenessProbe; p == nil || p.HTTPGet.Path != "/healthz" {
		t.Errorf("the liveness probe asks %+v", p)
	}
}

// tryPod checks what holds for usher wherever it runs.
func tryPod(t *testing.T, p pod, usher *container) {
	t.Helper()
	if usher.StartupProbe == nil || usher.ReadinessProbe == nil {
		t.Errorf("%s: no startup or no readiness probe", usher.Name)
	}
	c := usher.SecurityContext
	if !p.SecurityContext.RunAsNonRoot || !c.ReadOnly || c.Escalation == nil || *c.Escalation || usher.Resources.Limits["memory"] == "" {
		t.Errorf("%s may do more than it must", usher.Name)
	}
	needs := 15 * time.Second // USHER_SHUTDOWN_GRACE, by default
	for _, e := range usher.Env {
		switch {
		case strings.HasSuffix(e.Name, "_FILE"):
			mounted := slices.ContainsFunc(usher.VolumeMounts, func(m mount) bool { return strings.HasPrefix(e.Value, m.Path+"/") })
			if !mounted {
				t.Errorf("%s is %s, where nothing is mounted", e.Name, e.Value)
			}
		case e.Name == "USHER_SHUTDOWN_DELAY":
			delay, err := time.ParseDuration(e.Value)
			if err != nil {
				t.Error(err)
			}
			needs += delay
		}
	}
	if time.Duration(p.Grace)*time.Second <= needs {
		t.Errorf("%s is killed after %d s, but may need %v to end", usher.Name, p.Grace, needs)
	}
}

// objects are those of a file, by their kind.
func objects(t *testing.T, file string) map[string]object {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]object)
	for documents := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var o object
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[o.Kind] = o
	}
}

// The images are built with the toolchain that releases are built with.
func TestImagesToolchain(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^toolchain go(.+)$`).FindSubmatch(mod)
	for _, file := range []string{"../Dockerfile", "../examples/sandbox/Dockerfile"} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := regexp.MustCompile(`(?m)^FROM .*golang:([0-9.]+)`).FindSubmatch(content)
		if want == nil || got == nil || !bytes.Equal(got[1], want[1]) {
			t.Errorf("%s builds with %s, go.mod has %s", file, got, want)
		}
	}
}
