package k8s

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// objectivesGroup is where the Inference Extension has InferenceObjectives, until its v1.5.
const objectivesGroup = "inference.networking.x-k8s.io"

// kind has the API server know a kind of objects.
func (c *cluster) kind(group, version, plural, singular, kind string) {
	c.t.Helper()
	c.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": plural + "." + group, "annotations": object{"api-approved.kubernetes.io": "unapproved, test-only"}},
		"spec": object{"group": group, "scope": "Namespaced", "names": object{"plural": plural, "singular": singular, "kind": kind, "listKind": kind + "List"},
			"versions": []any{object{"name": version, "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": object{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}})
}

// kvrouter follows the objectives of its pool with the rights that the chart gives, while they
// come, change their pool and go, and while the API server cannot be reached.
func (c *cluster) objectives(t *testing.T) {
	path := "/apis/" + objectivesGroup + "/v1alpha2/namespaces/engines/inferenceobjectives"
	create := func(name, pool string, priority int) {
		c.must("POST", path, object{"apiVersion": objectivesGroup + "/v1alpha2", "kind": "InferenceObjective", "metadata": object{"name": name},
			"spec": object{"priority": priority, "poolRef": object{"name": pool}}})
	}
	create("chat", "pool", 10)
	create("another", "other", 10)
	address := filepath.Join(t.TempDir(), "address")
	p := run(t, filepath.Join(c.bin, "kvrouter"), "--nats=none", "--kv-events=false", "--http-listen=127.0.0.1:0", "--admin-listen=", "--address-file", address, "--picker-listen=127.0.0.1:0",
		"--picker-pool=pool", "--kube-api", "https://"+c.proxy.Addr().String(), "--kube-ca", c.cert, "--kube-token-file", filepath.Join(c.dir, "discover"), "--kube-namespace=engines")
	known := func(want int) {
		t.Helper()
		until(t, func() error {
			at, err := os.ReadFile(address)
			if err != nil {
				return err
			}
			resp, err := http.Get("http://" + strings.TrimSpace(string(at)) + "/metrics")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err == nil && !strings.Contains(string(text), fmt.Sprintf("\nkvatlas_picker_objectives %d\n", want)) {
				err = fmt.Errorf("not %d objectives are known; %s", want, p.end(1000))
			}
			return err
		})
	}
	known(1)
	create("batch", "pool", -1)
	known(2)
	c.must("PATCH", path+"/another", object{"spec": object{"poolRef": object{"name": "pool"}}})
	known(3)
	c.reachable(false)
	c.must("DELETE", path+"/chat", nil)
	c.must("DELETE", path+"/batch", nil)
	until(t, func() error {
		if !strings.Contains(p.end(1<<20), "what is known of InferenceObjectives holds on") {
			return fmt.Errorf("it does not say that the API server is away: %s", p.end(1000))
		}
		return nil
	})
	known(3)
	c.reachable(true)
	known(1)
}
