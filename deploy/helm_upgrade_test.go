package deploy

import (
	"maps"
	"os/exec"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v3"
)

// earlier is the commit that stands for the last release until there is one.
const earlier = "22cfe8f"

// valuesBefore are those that the chart of that commit takes, with all that makes objects.
const valuesBefore = `
nats: {url: "nats://nats:4222", credentialsSecret: nats-user}
access: {tokensSecret: tokens, tlsSecret: tls}
indexer: {persistence: {enabled: true, storageClass: fast}, settings: {memory-budget: 1GiB}}
publisher:
  persistence: {enabled: true}
  engines: [{name: engine-0, settings: {model: org/model, engine: "tcp://engine-0:5557"}}]
metrics: {serviceMonitor: {enabled: true}, alerts: {enabled: true}, dashboard: {enabled: true}}
`

// What Kubernetes lets nobody change in an object that is there: an upgrade that does is refused.
func TestHelmUpgradesFromEarlierCharts(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("sh", "-c", "git -C .. archive "+earlier+" deploy/helm/kvatlas | tar -x -C "+dir).CombinedOutput(); err != nil {
		t.Skipf("skipped: commit %s is not here: %v %s", earlier, err, out)
	}
	before, now := fixed(t, renderChart(t, dir+"/deploy/helm/kvatlas", valuesBefore)), fixed(t, render(t, valuesBefore))
	if len(before) < 7 {
		t.Errorf("%d objects", len(before))
	}
	for name, was := range before {
		if !reflect.DeepEqual(was, now[name]) {
			t.Errorf("%s was fixed as\n%v\nand is\n%v", name, was, now[name])
		}
	}
	for name := range maps.Keys(now) {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is new without being asked for", name)
		}
	}
}

// fixed returns the fields of each object that cannot be changed.
func fixed(t *testing.T, objects []object) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, o := range objects {
		var spec map[string]any
		if o.Spec.Kind == yaml.MappingNode {
			if err := o.Spec.Decode(&spec); err != nil {
				t.Fatal(err)
			}
		}
		keep := map[string]any{}
		switch o.Kind {
		case "StatefulSet":
			for _, field := range []string{"selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"} {
				keep[field] = spec[field]
			}
		case "Deployment":
			keep["selector"] = spec["selector"]
		case "Service":
			keep["clusterIP"], keep["selector"] = spec["clusterIP"], spec["selector"]
		}
		all[o.Kind+"/"+o.Metadata.Name] = keep
	}
	return all
}
