package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvatlas/kvatlas/internal/testing/securetest"
)

// helm runs the pinned Helm, which `make test-deploy` asks for: to build it takes
// a minute the first time.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if os.Getenv("KVATLAS_TEST_DEPLOY") != "1" {
		t.Skip("skipped: make test-deploy runs it, with Helm as a Go tool")
	}
	cmd := exec.Command("go", append([]string{"tool", "-modfile=../tools/helm/go.mod", "helm"}, args...)...)
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	return out.String() + errs.String(), err
}

const chart = "helm/kvatlas"

// values are those with everything in use, and with as little as possible.
var values = map[string]string{
	"all": `
nats: {url: "nats://nats:4222", credentialsSecret: nats-user, caSecret: nats-ca}
image: {digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
networkPolicy: {enabled: true, from: [{podSelector: {matchLabels: {app: gateway}}}]}
namespace: prod
access: {tokensSecret: tokens, tlsSecret: tls, caSecret: ca, clientCASecret: clients}
indexer:
  replicas: 3
  persistence: {enabled: true, storageClass: fast}
  settings: {memory-budget: 1GiB, ready-lag: 10, registry-allow: [10.0.0.0/8]}
  env: [{name: GOMEMLIMIT, value: 3GiB}]
  podAnnotations: {a: b}
  podLabels: {c: d}
  nodeSelector: {e: f}
  tolerations: [{key: g, operator: Exists}]
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
router:
  settings: {mode: kv, overlap-weight: 1.5, trust: [10.0.0.0/8, 127.0.0.1]}
  natsCredentialsSecret: nats-router
  autoscaling: {enabled: true, maxReplicas: 5, promptTokens: 100000}
  extraVolumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
  extraVolumeMounts: [{name: models, mountPath: /models, readOnly: true}]
  extraPorts: [{name: mine, port: 9003, appProtocol: kubernetes.io/h2c}]
  picker: {enabled: true, pool: llama}
discover: {enabled: true, pool: llama, tokenSecret: operator, settings: {block-size: 16}}
publisher:
  natsCredentialsSecret: nats-publisher
  persistence: {enabled: true}
  engines:
    - {name: engine-0, settings: {model: org/model, engine: "tcp://engine-0:5557", engine-replay: "tcp://engine-0:5558"}}
    - {name: engine-1, settings: {model: org/model, engine: "tcp://engine-1:5557", worker: "7"}}
metrics:
  serviceMonitor: {enabled: true, tokenSecret: reader, certSecret: prometheus}
  alerts: {enabled: true}
  dashboard: {enabled: true}
`,
	"least": `
nats: {url: "nats://nats:4222"}
access: {allowAnonymous: true}
indexer: {replicas: 1}
router: {enabled: false}
serviceAccount: {name: mine}
`,
	"tls": `
nats: {url: "nats://nats:4222"}
access: {allowAnonymous: true, tlsSecret: tls}
indexer: {replicas: 1}
router: {replicas: 1, picker: {enabled: true}}
`,
	"certificates": `
nats: {url: "nats://nats:4222"}
access: {tlsSecret: tls, clientCASecret: clients}
indexer: {replicas: 1}
router: {replicas: 1, picker: {enabled: true}}
`,
	"picker": `
nats: {url: "nats://nats:4222"}
access: {allowAnonymous: true}
indexer: {replicas: 1}
router: {replicas: 1, picker: {enabled: true, port: 9102}}
networkPolicy: {enabled: true}
`,
	"discovery alone": `
access: {allowAnonymous: true}
indexer: {enabled: false}
router: {enabled: false}
discover: {enabled: true, selector: "app=vllm,tier in (a,b)", settings: {register-at: "http://elsewhere:8090"}}
serviceAccount: {name: mine}
`,
}

// least are the least values with more of the indexer's.
func least(indexer string) string {
	return strings.Replace(values["least"], "indexer: {replicas: 1}", "indexer: {replicas: 1, "+indexer+"}", 1)
}

func valuesFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// secrets returns a directory with what the pods have mounted from secrets, where
// they have it: programs read it before they take their settings.
func secrets(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	securetest.New(t).Issue("pod", file("tls/tls.crt"), file("tls/tls.key"))
	securetest.Replace(t, file("access/tokens.yaml"), []byte("- {name: ops, token: 0123456789abcdef, role: operator}\n"))
	securetest.Replace(t, file("nats/creds"), nil)
	securetest.Replace(t, file("register/token"), []byte("0123456789abcdef\n"))
	for _, ca := range []string{"nats-ca", "ca", "client-ca"} {
		securetest.New(t).Issue("an authority", file(ca+"/ca.crt"), file(ca+"/ca.key"))
	}
	return dir
}

// The example's values are the chart's, and what is rendered of all values decodes strictly
// into the types of Kubernetes' API, which tools/k8s pins.
func TestHelmRendersTheAPIsTypes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, release, text string) {
		out, err := helm(t, "template", release, chart, "--kube-version=1.31.0", "-f", valuesFile(t, text))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".yaml"), []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range values {
		write(name, "rel", text)
	}
	text, err := os.ReadFile("example/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write("example", "kv", string(text))
	cmd := exec.Command("go", "test", "-C", "../tools/k8s", "-count=1", "-v", "-run", "TestManifests", ".")
	cmd.Env = append(os.Environ(), "KVATLAS_MANIFESTS="+dir)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestManifests") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestHelmLint(t *testing.T) {
	for name, v := range values {
		if out, err := helm(t, "lint", "--strict", "--kube-version=1.31.0", "-f", valuesFile(t, v), chart); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestHelmRefusesWhatCannotWork(t *testing.T) {
	for want, v := range map[string]string{
		"say where NATS with JetStream is": "access: {allowAnonymous: true}",
		"give tokensSecret":                `nats: {url: "nats://n:4222"}`,
		"has no setting \"overlap-wait\"":  least("settings: {overlap-wait: 2}"),
		"no user or password goes into":    "access: {allowAnonymous: true}\nnats: {url: \"nats://me:secret@n:4222\"}",
		"sha256":                           values["least"] + "\nimage: {digest: latest}",
		"replica":                          values["least"] + "\nimage: {replica: 2}",
		"give either pool or selector":     values["least"] + "\ndiscover: {enabled: true}",
		"network of the pods":              values["least"] + "\ndiscover: {enabled: true, pool: p}",
		"an operator's of":                 strings.Replace(values["discovery alone"], "allowAnonymous: true", "tokensSecret: t", 1),
		"where workers are registered":     strings.Replace(values["discovery alone"], "settings:", "resources:", 1),
		"without TLS nobody shows":         strings.Replace(values["least"], "{allowAnonymous: true}", "{clientCASecret: c}", 1),
		"Prometheus has to show":           values["certificates"] + "\nmetrics: {serviceMonitor: {enabled: true}}",
		"engine-token is a secret":         strings.Replace(values["picker"], "router: {", "router: {settings: {engine-token: sk-1}, ", 1),
		"of a URL goes into a ConfigMap":   strings.Replace(values["picker"], "router: {", "router: {settings: {engines: [\"http://me:secret@e:8000\"], model: m}, ", 1),
		"set enabled too":                  strings.Replace(values["least"], "{enabled: false}", "{picker: {pool: p}}", 1),
		"8099 is the router's own":         strings.Replace(values["picker"], "port: 9102", "port: 8099", 1),
		"Does not match":                   values["least"] + "\npublisher: {engines: [{name: Not_A_Name, settings: {}}]}",
	} {
		out, err := helm(t, "template", "x", chart, "--kube-version=1.31.0", "-f", valuesFile(t, v))
		if err == nil || !strings.Contains(strings.ToLower(out), strings.ToLower(want)) {
			t.Errorf("%v, want %q in\n%s", err, want, out)
		}
	}
}

// object is what of a rendered object is looked at.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Spec     yaml.Node
}

type mount struct {
	Name      string
	MountPath string `yaml:"mountPath"`
}

type workload struct {
	Template struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			Account  string `yaml:"serviceAccountName"`
			Token    *bool  `yaml:"automountServiceAccountToken"`
			Links    *bool  `yaml:"enableServiceLinks"`
			Grace    int    `yaml:"terminationGracePeriodSeconds"`
			Security struct {
				NonRoot bool `yaml:"runAsNonRoot"`
				User    int  `yaml:"runAsUser"`
			} `yaml:"securityContext"`
			Containers []struct {
				Name     string
				Command  []string
				Env      []struct{ Name, Value string }
				Security struct {
					Escalation *bool                   `yaml:"allowPrivilegeEscalation"`
					ReadOnly   bool                    `yaml:"readOnlyRootFilesystem"`
					Drop       struct{ Drop []string } `yaml:"capabilities"`
				} `yaml:"securityContext"`
				Mounts  []mount `yaml:"volumeMounts"`
				Startup struct {
					Failures int `yaml:"failureThreshold"`
				} `yaml:"startupProbe"`
			}
			Volumes []struct {
				Name      string
				ConfigMap struct{ Name string } `yaml:"configMap"`
				Secret    struct {
					Name string `yaml:"secretName"`
				}
			}
		}
	}
	Claims []struct{ Metadata struct{ Name string } } `yaml:"volumeClaimTemplates"`
}

func render(t *testing.T, v string) []object { return renderChart(t, chart, v) }

func renderChart(t *testing.T, chart, v string) (list []object) {
	t.Helper()
	out, err := helm(t, "template", "rel", chart, "--kube-version=1.31.0", "-f", valuesFile(t, v))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for dec := yaml.NewDecoder(strings.NewReader(out)); ; {
		var o object
		if err := dec.Decode(&o); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		if o.Kind != "" {
			list = append(list, o)
		}
	}
}

// A picker has one port in the settings, the pod, the Service and the NetworkPolicy, beside
// further ones. The Service says that it is plain where it is, and only then the kubelet can
// ask it, as it speaks no TLS.
func TestHelmPicker(t *testing.T) {
	for name, want := range map[string][]string{
		"picker": {
			"picker-listen: 0.0.0.0:9102", "{name: picker, containerPort: 9102}", "{port: picker, protocol: TCP}",
			`{name: picker, port: 9102, targetPort: picker, appProtocol: "kubernetes.io/h2c"}`, "grpc: {port: 9102, service: readiness}",
		},
		"all": {
			"picker-listen: 0.0.0.0:9002", "{name: picker, containerPort: 9002}", "{port: picker, protocol: TCP}",
			"{name: picker, port: 9002, targetPort: picker}", "{name: mine, containerPort: 9003}", "httpGet: {path: /readyz, port: probes}",
			"picker-pool: llama", `{"apiGroups":["inference.networking.x-k8s.io"],"resources":["inferenceobjectives"],"verbs":["list","watch"]}`,
			"kvatlas_router_prompt_tokens_per_second", `averageValue: "100000"`,
		},
		"tls":          {"httpGet: {path: /readyz, port: http, scheme: HTTPS}", "{name: picker, port: 9002, targetPort: picker}"},
		"certificates": {"tls-client-ca: /etc/kvatlas/client-ca/ca.crt", "probe-listen: 0.0.0.0:8099", "httpGet: {path: /livez, port: probes}", "{name: probes, containerPort: 8099}"},
	} {
		out, err := helm(t, "template", "rel", chart, "--kube-version=1.31.0", "-s", "templates/router.yaml", "-f", valuesFile(t, values[name]))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, line := range want {
			if !strings.Contains(out, line) {
				t.Errorf("%s: no %s in\n%s", name, line, out)
			}
		}
	}
}

// Who may come in is named; kvpods and the routers, which ask the indexers, need not be.
func TestHelmPartsReachEachOther(t *testing.T) {
	policies := 0
	for _, o := range render(t, values["all"]) {
		if o.Kind != "NetworkPolicy" {
			continue
		}
		policies++
		var p struct {
			Ingress []struct {
				From []struct {
					Pods struct {
						Labels map[string]string `yaml:"matchLabels"`
					} `yaml:"podSelector"`
				}
			}
		}
		if err := o.Spec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		from := p.Ingress[0].From
		if len(from) != 2 || from[0].Pods.Labels["app"] != "gateway" || !maps.Equal(from[1].Pods.Labels, map[string]string{"app.kubernetes.io/name": "kvatlas", "app.kubernetes.io/instance": "rel"}) {
			t.Errorf("%s lets in %v", o.Metadata.Name, from)
		}
	}
	if policies < 3 {
		t.Error(policies, "policies")
	}
}

// Each part has the NATS user that is its own, or else that of all, and those who ask NATS its
// authority; every pod has time to start; what is secret is in no ConfigMap.
func TestHelmSecretsOfEachPart(t *testing.T) {
	want := map[string]string{
		"rel-router": "access=tokens client-ca=clients nats-ca=nats-ca nats=nats-router tls=tls", "rel-indexer": "access=tokens client-ca=clients nats-ca=nats-ca nats=nats-user tls=tls",
		"rel-publisher-engine-0": "access=tokens client-ca=clients nats-ca=nats-ca nats=nats-publisher tls=tls", "rel-publisher-engine-1": "access=tokens client-ca=clients nats-ca=nats-ca nats=nats-publisher tls=tls",
		"rel-discover": "access=tokens ca=ca client-ca=clients register=operator tls=tls",
	}
	got := map[string]string{}
	for _, o := range render(t, values["all"]) {
		for file, text := range o.Data {
			if o.Kind == "ConfigMap" && strings.HasSuffix(file, ".yaml") && (strings.Contains(text, "BEGIN ") || strings.Contains(text, "@")) {
				t.Errorf("%s of %s:\n%s", file, o.Metadata.Name, text)
			}
		}
		if o.Kind != "StatefulSet" && o.Kind != "Deployment" {
			continue
		}
		var w workload
		if err := o.Spec.Decode(&w); err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, v := range w.Template.Spec.Volumes {
			if v.Secret.Name != "" {
				list = append(list, v.Name+"="+v.Secret.Name)
			}
		}
		slices.Sort(list)
		got[o.Metadata.Name] = strings.Join(list, " ")
		if w.Template.Spec.Containers[0].Startup.Failures < 2 {
			t.Errorf("%s has no time to start", o.Metadata.Name)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v\nwant\n%v", got, want)
	}
}

func TestHelmRendersWhatTheProgramsTake(t *testing.T) {
	for name, want := range map[string]map[string]int{
		"all": {"ConfigMap": 6, "Service": 5, "StatefulSet": 3, "Deployment": 2, "PodDisruptionBudget": 2, "ServiceAccount": 3, "NetworkPolicy": 5, "HorizontalPodAutoscaler": 1,
			"ServiceMonitor": 1, "PrometheusRule": 1, "Role": 2, "RoleBinding": 2},
		"tls":             {"ConfigMap": 2, "Service": 2, "StatefulSet": 1, "Deployment": 1, "ServiceAccount": 1},
		"certificates":    {"ConfigMap": 2, "Service": 2, "StatefulSet": 1, "Deployment": 1, "ServiceAccount": 1},
		"least":           {"ConfigMap": 1, "Service": 1, "StatefulSet": 1},
		"picker":          {"ConfigMap": 2, "Service": 2, "StatefulSet": 1, "Deployment": 1, "NetworkPolicy": 2, "ServiceAccount": 1},
		"discovery alone": {"ConfigMap": 1, "Service": 1, "Deployment": 1, "ServiceAccount": 1, "Role": 1, "RoleBinding": 1},
	} {
		objects := render(t, values[name])
		kinds, configs := map[string]int{}, map[string]map[string]string{}
		for _, o := range objects {
			kinds[o.Kind]++
			if o.Kind == "ConfigMap" {
				configs[o.Metadata.Name] = o.Data
			}
		}
		if !reflect.DeepEqual(kinds, want) {
			t.Errorf("%s: %v, want %v", name, kinds, want)
		}
		for _, o := range objects {
			switch o.Kind {
			case "StatefulSet", "Deployment":
				var w workload
				if err := o.Spec.Decode(&w); err != nil {
					t.Fatal(err)
				}
				checkPod(t, o.Metadata.Name, &w, configs)
			case "PrometheusRule":
				sameYAML(t, &o.Spec, "helm/kvatlas/files/alerts.yaml")
			}
		}
		if data := configs["rel-dashboard"]; name == "all" && !json.Valid([]byte(data["kvatlas.json"])) {
			t.Error("the dashboard is no JSON")
		}
	}
}

// checkPod checks that a pod is as safe as its program allows, that its program
// takes its settings, and that it has the time that it gives itself.
func checkPod(t *testing.T, name string, w *workload, configs map[string]map[string]string) {
	t.Helper()
	pod := &w.Template.Spec
	asks := len(pod.Containers) == 1 && (pod.Containers[0].Name == "kvpods" || pod.Account == name) // Kubernetes
	if pod.Token == nil || *pod.Token != asks || pod.Links == nil || *pod.Links || !pod.Security.NonRoot || pod.Security.User != 65532 || len(pod.Containers) != 1 {
		t.Errorf("%s: %+v", name, pod)
		return
	}
	c := &pod.Containers[0]
	if !c.Security.ReadOnly || c.Security.Escalation == nil || *c.Security.Escalation || !slices.Equal(c.Security.Drop.Drop, []string{"ALL"}) {
		t.Errorf("%s: %+v", name, c.Security)
	}
	volumes := map[string]bool{}
	for _, claim := range w.Claims {
		volumes[claim.Metadata.Name] = true
	}
	config := ""
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap.Name != "" {
			config = configs[v.ConfigMap.Name][c.Name+".yaml"]
		}
	}
	for _, m := range c.Mounts {
		if !volumes[m.Name] {
			t.Errorf("%s: no volume %s", name, m.Name)
		}
	}
	if len(volumes) != len(c.Mounts) || !slices.Equal(c.Command, []string{"/" + c.Name}) {
		t.Errorf("%s: volumes %v, mounts %v, command %v", name, volumes, c.Mounts, c.Command)
	}
	var env []string
	for _, e := range c.Env {
		if e.Name != "KVATLAS_CONFIG" {
			env = append(env, e.Name+"="+e.Value)
		} else if e.Value != "/etc/kvatlas/settings/"+c.Name+".yaml" {
			t.Errorf("%s: settings in %s", name, e.Value)
		}
	}
	if dir := slices.Index(env, "TMPDIR=/var/lib/kvatlas"); (dir < 0) != (c.Name == "kvpods") || dir >= 0 && !slices.ContainsFunc(c.Mounts, func(m mount) bool { return m.Name == "data" && m.MountPath == "/var/lib/kvatlas" }) {
		t.Errorf("%s: nowhere is a place for files that go: %q, %v", name, env, c.Mounts)
	}
	accepts(t, c.Name, []string{"--config", valuesFile(t, strings.ReplaceAll(config, "/etc/kvatlas", secrets(t)))}, env)
	var settings struct {
		Delay string `yaml:"drain-delay"`
		Stop  string `yaml:"stop-timeout"`
	}
	if err := yaml.Unmarshal([]byte(config), &settings); err != nil {
		t.Fatal(err)
	}
	needs := time.Duration(0)
	for _, text := range []string{settings.Delay, settings.Stop} {
		if text != "" {
			d, err := time.ParseDuration(text)
			if err != nil {
				t.Error(err)
			}
			needs += d
		}
	}
	if grace := time.Duration(pod.Grace) * time.Second; grace <= needs {
		t.Errorf("%s is killed after %v and gives itself %v", name, grace, needs)
	}
}

func sameYAML(t *testing.T, have *yaml.Node, file string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := have.Decode(&a); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &b); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("not what %s has", file)
	}
}
