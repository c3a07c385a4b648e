package deploy

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// manifest is what of the example's objects names others.
type manifest struct {
	Kind     string
	Metadata struct{ Name string }
	Spec     struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct {
				Containers []struct {
					Args  []string
					Ports []struct {
						Name string
						Port int `yaml:"containerPort"`
					}
				}
			}
		}
		TargetPorts []struct{ Number int } `yaml:"targetPorts"`
		Picker      struct {
			Name string
			Port struct{ Number int }
		} `yaml:"endpointPickerRef"`
		Scale struct{ Kind, Name string } `yaml:"scaleTargetRef"`
		Rules []struct {
			Backends []struct {
				Kind, Name string
				Port       int
			} `yaml:"backendRefs"`
			Timeouts struct{ Request string }
		}
	}
}

func manifests(t *testing.T, name string) map[string]manifest {
	t.Helper()
	text, err := os.ReadFile("example/" + name)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for dec := yaml.NewDecoder(strings.NewReader(string(text))); ; {
		var m manifest
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(name, err)
		}
		all[m.Kind] = m
	}
}

// What the parts of the example say of each other is so: labels, ports, block size and names.
func TestTheExampleFitsTogether(t *testing.T) {
	const release, router, picker, events = "kv", 8000, 9002, 5557 // as values.yaml installs it; the chart's and kvpods' defaults
	text, err := os.ReadFile("example/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Discover struct {
			Selector string
			Settings struct {
				Replay int `yaml:"replay-port"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil || !strings.Contains(string(text), "helm install "+release+" ") {
		t.Fatal(err, "or the release has another name")
	}
	engines := manifests(t, "engines.yaml")["Deployment"]
	pool, route := manifests(t, "pool.yaml")["InferencePool"], manifests(t, "pool.yaml")["HTTPRoute"]
	pod := engines.Spec.Template
	key, value, _ := strings.Cut(values.Discover.Selector, "=")
	if l := pod.Metadata.Labels; value == "" || l[key] != value || pool.Spec.Selector.MatchLabels[key] != value || engines.Spec.Selector.MatchLabels[key] != value {
		t.Errorf("the engines have %v, kvpods looks for %s, the pool for %v", l, values.Discover.Selector, pool.Spec.Selector.MatchLabels)
	}
	ports, args := map[string]int{}, map[string]string{}
	for _, p := range pod.Spec.Containers[0].Ports {
		ports[p.Name] = p.Port
	}
	for _, a := range pod.Spec.Containers[0].Args {
		name, value, _ := strings.Cut(a, "=")
		args[name] = value
	}
	if args["--port"] != strconv.Itoa(ports["http"]) || len(pool.Spec.TargetPorts) != 1 || pool.Spec.TargetPorts[0].Number != ports["http"] {
		t.Errorf("the engines listen at %s, of %v; the pool has %v", args["--port"], ports, pool.Spec.TargetPorts)
	}
	var kv struct {
		Enabled  bool   `json:"enable_kv_cache_events"`
		Endpoint string `json:"endpoint"`
		Replay   string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal([]byte(args["--kv-events-config"]), &kv); err != nil {
		t.Fatal(err)
	}
	at := func(port int) string { return "tcp://*:" + strconv.Itoa(port) }
	if !kv.Enabled || ports["events"] != events || kv.Endpoint != at(events) || ports["replay"] != values.Discover.Settings.Replay || kv.Replay != at(values.Discover.Settings.Replay) {
		t.Errorf("%+v, ports %v, and kvpods reads events at %d and %d", kv, ports, events, values.Discover.Settings.Replay)
	}
	if notes := pod.Metadata.Annotations; notes["kvatlas/block-size"] != args["--block-size"] {
		t.Errorf("%v, and blocks of %s", notes, args["--block-size"])
	}
	if p := pool.Spec.Picker; p.Name != release+"-router" || p.Port.Number != picker {
		t.Errorf("the pool's picker is %v", p)
	}
	if b := route.Spec.Rules[0].Backends[0]; b.Kind != "InferencePool" || b.Name != pool.Metadata.Name {
		t.Errorf("the pool's route goes to %v", b)
	}
	if a, b := route.Spec.Rules[0].Timeouts.Request, manifests(t, "gateway.yaml")["HTTPRoute"].Spec.Rules[0].Timeouts.Request; a != b || a == "" {
		t.Errorf("a request may take %q through the pool, and %q through the routers", a, b)
	}
	if b := manifests(t, "gateway.yaml")["HTTPRoute"].Spec.Rules[0].Backends[0]; b.Name != release+"-router" || b.Port != router {
		t.Errorf("the gateway's route goes to %v", b)
	}
	if s := manifests(t, "scaling.yaml")["HorizontalPodAutoscaler"].Spec.Scale; s.Kind != engines.Kind || s.Name != engines.Metadata.Name {
		t.Errorf("the autoscaler is of %v", s)
	}
}
