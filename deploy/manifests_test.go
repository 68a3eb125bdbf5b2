package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/url"
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
		Replicas       int
		MinAvailable   int    `yaml:"minAvailable"`
		EvictionPolicy string `yaml:"unhealthyPodEvictionPolicy"`
		Selector       any
		PodSelector    any `yaml:"podSelector"`
		Template       podTemplate
		JobTemplate    struct {
			Spec struct{ Template podTemplate }
		} `yaml:"jobTemplate"`
		Claims    []struct{ Metadata struct{ Name string } } `yaml:"volumeClaimTemplates"`
		Endpoints []struct {
			Authorization struct{ Credentials struct{ Name, Key string } }
		} `yaml:"podMetricsEndpoints"`
	}
}

type podTemplate struct {
	Metadata struct{ Labels map[string]string }
	Spec     pod
}

type pod struct {
	Grace           int          `yaml:"terminationGracePeriodSeconds"`
	InitContainers  []*container `yaml:"initContainers"`
	Containers      []*container
	SecurityContext struct {
		RunAsNonRoot bool `yaml:"runAsNonRoot"`
		RunAsUser    *int `yaml:"runAsUser"`
		FSGroup      *int `yaml:"fsGroup"`
	} `yaml:"securityContext"`
	Volumes []struct {
		Name   string
		Secret struct {
			Mode  int `yaml:"defaultMode"`
			Items []struct{ Key string }
		}
	}
}

type mount struct {
	Name string
	Path string `yaml:"mountPath"`
}

type probe struct {
	HTTPGet struct{ Path string } `yaml:"httpGet"`
}

type container struct {
	Name            string
	Command         []string
	RestartPolicy   string `yaml:"restartPolicy"`
	Env             []struct{ Name, Value string }
	VolumeMounts    []mount `yaml:"volumeMounts"`
	StartupProbe    *probe  `yaml:"startupProbe"`
	ReadinessProbe  *probe  `yaml:"readinessProbe"`
	LivenessProbe   *probe  `yaml:"livenessProbe"`
	SecurityContext struct {
		RunAsNonRoot bool  `yaml:"runAsNonRoot"`
		ReadOnly     bool  `yaml:"readOnlyRootFilesystem"`
		Escalation   *bool `yaml:"allowPrivilegeEscalation"`
	} `yaml:"securityContext"`
	Resources struct{ Limits map[string]string }
}

func TestManifests(t *testing.T) {
	sidecar := objects(t, read(t, "kubernetes/sidecar.yaml")).one(t, "Deployment").Spec.Template.Spec
	trySidecar(t, sidecar)
	if sidecar.InitContainers[0].ReadinessProbe == nil {
		t.Error("the sidecar has no readiness probe")
	}
	gateway := objects(t, read(t, "kubernetes/gateway.yaml"))
	nightly := objects(t, read(t, "kubernetes/reconcile.yaml"))
	tryServices(t, slices.Concat(gateway, objects(t, read(t, "kubernetes/gateway-networkpolicy.yaml")), nightly), map[string]string{"usher-gateway": "gate"})
	tryReconcile(t, nightly)
	jobs := objects(t, read(t, "kubernetes/job.yaml"))
	trySidecar(t, jobs.one(t, "Job").Spec.Template.Spec)
	trySidecar(t, jobs.one(t, "CronJob").Spec.JobTemplate.Spec.Template.Spec)
}

// trySidecar checks a pod that usher was added to.
func trySidecar(t *testing.T, p pod) {
	t.Helper()
	if len(p.InitContainers) == 0 {
		t.Fatal("no init container")
	}
	usher := p.InitContainers[0]
	if usher.Name != "usher" || usher.RestartPolicy != "Always" {
		t.Errorf("%s with restartPolicy %q is no sidecar", usher.Name, usher.RestartPolicy)
	}
	tryPod(t, p, usher)
	// All containers of a pod are in its fsGroup, and it changes the owner of the program's own volumes.
	for _, v := range p.Volumes {
		if p.SecurityContext.FSGroup != nil || v.Secret.Mode != 0 && v.Secret.Mode != 0o444 {
			t.Errorf("the volume %s has the mode %o, and the pod the fsGroup %v", v.Name, v.Secret.Mode, p.SecurityContext.FSGroup)
		}
	}
}

// tryReconcile checks a job with usher and a script in its image, and that it asks the admin port by its Service.
func tryReconcile(t *testing.T, all manifest) {
	t.Helper()
	p := all.one(t, "CronJob").Spec.JobTemplate.Spec.Template.Spec
	job := p.Containers[0]
	if len(job.Command) < 4 || job.Command[0] != "usher" || job.Command[1] != "reconcile" {
		t.Errorf("it runs %q", job.Command)
	}
	s := job.SecurityContext
	if !p.SecurityContext.RunAsNonRoot || !s.ReadOnly || s.Escalation == nil || *s.Escalation || job.Resources.Limits["memory"] == "" {
		t.Errorf("%s may do more than it must", job.Name)
	}
	for _, e := range job.Env {
		if e.Name == "USHER_ADMIN_LISTEN" && e.Value != all.one(t, "Service").Metadata.Name+":9095" {
			t.Errorf("it asks %s", e.Value)
		}
		if strings.HasSuffix(e.Name, "_FILE") {
			t.Errorf("the script can read %s", e.Name)
		}
	}
}

// tryServices checks ushers that others call, each in a workload of its own, and what belongs to them. parts
// says of each workload, by its name, which part is asked whether it is ready.
func tryServices(t *testing.T, all manifest, parts map[string]string) {
	t.Helper()
	found, services := 0, make(map[string]int)
	for _, w := range all {
		if w.Kind != "Deployment" && w.Kind != "StatefulSet" {
			continue
		}
		found++
		name, p := w.Metadata.Name, w.Spec.Template.Spec
		usher := p.Containers[0]
		tryPod(t, p, usher)
		tryContainer(t, usher, parts[name])
		tryKeys(t, p, usher)
		budgets := 0
		for _, o := range all {
			if o.Kind == "PodDisruptionBudget" && selects(o, w) {
				budgets++
				if least := o.Spec.MinAvailable; least < 1 || least >= w.Spec.Replicas || o.Spec.EvictionPolicy != "AlwaysAllow" {
					t.Errorf("%s: of %d replicas %d must be available, unhealthy ones by %q: none can be lost, or none can be drained", name, w.Spec.Replicas, least, o.Spec.EvictionPolicy)
				}
			}
		}
		if (budgets == 1) != (w.Spec.Replicas > 1) {
			t.Errorf("%s: %d budgets for %d replicas", name, budgets, w.Spec.Replicas)
		}
	}
	if found != len(parts) {
		t.Errorf("%d workloads, want %v", found, slices.Collect(maps.Keys(parts)))
	}
	for _, o := range all {
		if o.Spec.Selector == nil && o.Spec.PodSelector == nil {
			continue
		}
		var selected []string
		for _, w := range all {
			if (w.Kind == "Deployment" || w.Kind == "StatefulSet") && selects(o, w) {
				selected = append(selected, w.Metadata.Name)
			}
		}
		if want := 1; len(selected) != want && o.Kind != "PodMonitor" || len(selected) == 0 {
			t.Errorf("%s %s selects the pods of %q", o.Kind, o.Metadata.Name, selected)
			continue
		}
		if o.Kind == "Service" {
			services[selected[0]]++
		}
	}
	for name := range parts {
		if services[name] == 0 {
			t.Errorf("%s has no Service", name)
		}
	}
}

// selects reports whether an object selects the pods of a workload.
func selects(o, workload object) bool {
	selector := o.Spec.Selector
	if selector == nil {
		selector = o.Spec.PodSelector
	}
	selected, _ := selector.(map[string]any)
	if match, ok := selected["matchLabels"].(map[string]any); ok {
		selected = match
	}
	for label, value := range selected {
		if workload.Spec.Template.Metadata.Labels[label] != value {
			return false
		}
	}
	return len(selected) > 0
}

// tryKeys checks that a pod gets the keys of its Secret that it uses, and no other: a gate holds no
// credential of the billing service. A manifest with a Secret of its own may leave it at that.
func tryKeys(t *testing.T, p pod, usher *container) {
	t.Helper()
	var got, used []string
	for _, v := range p.Volumes {
		for _, item := range v.Secret.Items {
			got = append(got, item.Key)
		}
	}
	for _, e := range usher.Env {
		if key, ok := strings.CutPrefix(e.Value, "/run/secrets/usher/"); ok {
			used = append(used, key)
		}
	}
	slices.Sort(got)
	slices.Sort(used)
	if len(got) > 0 && !slices.Equal(got, used) {
		t.Errorf("the pod gets %q, and uses %q", got, used)
	}
}

// tryContainer checks that a container holds nothing of the billing service without outbound, stays in the load
// balancer for as long as its part works, and is not restarted for what a restart does not help.
func tryContainer(t *testing.T, usher *container, part string) {
	t.Helper()
	seen := make(map[string]bool)
	for _, e := range usher.Env {
		if part != "outbound" && (strings.HasPrefix(e.Name, "USHER_CLIENT_") || e.Name == "USHER_BASE_URL") {
			t.Errorf("%s does not need %s", part, e.Name)
		}
		if part == "outbound" && (strings.HasPrefix(e.Name, "USHER_WEBHOOK_") || strings.HasPrefix(e.Name, "USHER_ENTITLEMENTS_")) {
			t.Errorf("%s does not need %s", part, e.Name)
		}
		if seen[e.Name] {
			t.Errorf("%s is set twice", e.Name)
		}
		seen[e.Name] = true
	}
	for want, p := range map[string]*probe{"/readyz/" + part: usher.ReadinessProbe, "/healthz": usher.StartupProbe} {
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
	if usher.StartupProbe == nil {
		t.Errorf("%s: no startup probe", usher.Name)
	}
	c := usher.SecurityContext
	if !p.SecurityContext.RunAsNonRoot && !c.RunAsNonRoot || !c.ReadOnly || c.Escalation == nil || *c.Escalation || usher.Resources.Limits["memory"] == "" {
		t.Errorf("%s may do more than it must", usher.Name)
	}
	needs := 15 * time.Second // USHER_SHUTDOWN_GRACE, by default
	for _, e := range usher.Env {
		switch {
		case strings.HasSuffix(e.Name, "_FILE"):
			tryMounted(t, usher, e.Name, e.Value)
		case strings.HasPrefix(e.Value, "file:"):
			tryMounted(t, usher, e.Name, strings.TrimPrefix(e.Value, "file:"))
		case strings.HasPrefix(e.Value, "postgres:"):
			database, err := url.Parse(e.Value)
			if err != nil || database.Query().Get("sslmode") != "verify-full" {
				t.Errorf("%s: %s: %v", e.Name, e.Value, err)
				continue
			}
			tryMounted(t, usher, e.Name, database.Query().Get("sslrootcert"))
		case e.Name == "USHER_SHUTDOWN_DELAY":
			delay, err := time.ParseDuration(e.Value)
			if err != nil {
				t.Error(err)
			}
			needs += delay
		}
	}
	grace := time.Duration(p.Grace) * time.Second
	if p.Grace == 0 {
		grace = 30 * time.Second // as Kubernetes has it
	}
	if grace <= needs {
		t.Errorf("%s is killed after %v, but may need %v to end", usher.Name, grace, needs)
	}
}

func tryMounted(t *testing.T, usher *container, name, path string) {
	t.Helper()
	if !slices.ContainsFunc(usher.VolumeMounts, func(m mount) bool { return strings.HasPrefix(path, m.Path+"/") }) {
		t.Errorf("%s is %s, where nothing is mounted", name, path)
	}
}

// manifest is what one file, or one rendering, has.
type manifest []object

// one returns the object of that kind.
func (m manifest) one(t *testing.T, kind string) object {
	t.Helper()
	kinds := make(map[string]int)
	for _, o := range m {
		kinds[o.Kind]++
	}
	for _, o := range m {
		if o.Kind == kind && kinds[kind] == 1 {
			return o
		}
	}
	t.Fatalf("of the kinds %v not one %s", slices.Collect(maps.Keys(kinds)), kind)
	return object{}
}

func objects(t *testing.T, content []byte) manifest {
	t.Helper()
	var all manifest
	for documents := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var o object
		if err := documents.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// The image is built with the toolchain that releases are built with.
func TestImageToolchain(t *testing.T) {
	want := regexp.MustCompile(`(?m)^toolchain go(.+)$`).FindSubmatch(read(t, "../go.mod"))
	got := regexp.MustCompile(`(?m)^FROM .*golang:([0-9.]+)`).FindSubmatch(read(t, "../Dockerfile"))
	if want == nil || got == nil || !bytes.Equal(got[1], want[1]) {
		t.Errorf("the Dockerfile builds with %s, go.mod has %s", got, want)
	}
}
