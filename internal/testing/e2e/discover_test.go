package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/kubetest"
)

// pods is a fleet of pods with an indexer that they are registered at.
type pods struct {
	t      *testing.T
	home   string
	api    *kubetest.API
	apiURL string
	in     indexer
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	n, err := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// discover starts kvpods, and returns the URL of its admin port.
func (p *pods) discover(args ...string) (*process, string) {
	address := filepath.Join(p.t.TempDir(), "address")
	d := start(p.t, p.home, "kvpods", append([]string{"--kube-api", p.apiURL, "--kube-namespace=n", "--pool=pool", "--register-at", p.in.url,
		"--every=50ms", "--retry=10ms", "--admin-listen=127.0.0.1:0", "--address-file", address}, args...)...)
	var at string
	eventually(p.t, time.Minute, func() error {
		text, err := os.ReadFile(address)
		at = "http://" + strings.TrimSpace(string(text))
		return err
	})
	return d, at
}

// are waits until the workers that are registered are those, as "name blocks".
func (p *pods) are(want ...string) {
	p.t.Helper()
	c, err := client.New(client.Config{URL: p.in.url})
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	eventually(p.t, time.Minute, func() error {
		spaces, err := c.Workers(p.t.Context(), "")
		if err != nil {
			return err
		}
		var got []string
		for _, sp := range spaces {
			for _, w := range sp.Workers {
				if w.Info != nil && w.State == "live" {
					got = append(got, fmt.Sprint(sp.Model, "/", sp.BlockSize, " ", w.Info.Name, " ", w.Blocks > 0))
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}

// Pods of an InferencePool become workers, whose events are read; over a watch that is cut
// or too old, and while the API server is away, over kvpods's own restart too.
func TestPodsOfAPoolAreRegistered(t *testing.T) {
	p := &pods{t: t, home: t.TempDir(), api: kubetest.New()}
	server := httptest.NewServer(p.api)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	p.apiURL = server.URL
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"sql","parent":"asked"},{"id":"asked","parent":null}]}`) //nolint:errcheck // the caller may be gone
		case "/metrics":
			fmt.Fprintf(w, "vllm:cache_config_info{block_size=\"%d\"} 1\n", enginetest.BlockSize) //nolint:errcheck // the same
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(engine.Close)
	at, err := url.Parse(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	m := enginetest.NewMock(t, 5, 1, 0)
	events, replay := m.Endpoint(0)
	p.in = startIndexer(t, p.home, "--registry-beat=50ms")
	label := map[string]string{"app": "vllm"}
	p.api.Store("inferencepools", kubetest.Object{"metadata": map[string]any{"name": "pool"}, "spec": map[string]any{
		"selector": map[string]any{"matchLabels": label}, "targetPorts": []any{map[string]any{"number": portOf(t, at.Host)}}}})
	p.api.Store("pods", kubetest.Pod("a", "1", "127.0.0.1", label, map[string]string{
		"kvatlas/events-port": fmt.Sprint(portOf(t, events)), "kvatlas/replay-port": fmt.Sprint(portOf(t, replay))}))
	given := map[string]string{"kvatlas/model": "given", "kvatlas/block-size": "32", "kvatlas/events-port": "none"}
	p.api.Store("pods", kubetest.Pod("b", "2", "127.0.0.2", label, given))
	p.api.Store("pods", kubetest.Pod("other", "3", "127.0.0.3", nil, given))
	d, admin := p.discover()
	m.Publish(50)
	a := fmt.Sprintf("asked/%d k8s/n/pool/a true", enginetest.BlockSize)
	p.are(a, "given/32 k8s/n/pool/b false")
	text, err := get(t.Context(), admin+"/metrics")
	if n := sum(text, "kvatlas_discover_registered_workers"); err != nil || n != 2 {
		t.Errorf("%v workers registered, want 2: %v", n, err)
	}

	// The watch is cut, then too old; pods come and go meanwhile.
	p.api.Cut()
	p.api.Store("pods", kubetest.Pod("c", "4", "127.0.0.3", label, given))
	p.are(a, "given/32 k8s/n/pool/b false", "given/32 k8s/n/pool/c false")
	p.api.Away(true)
	p.api.Delete("pods", "c")
	p.api.Forget()

	// It starts anew while the API server is away: nobody departs. A worker that the
	// registry lost comes back once there is a list.
	d.kill()
	d, admin = p.discover()
	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), admin+"/metrics")
		if n := sum(text, "kvatlas_discover_registered_workers"); err != nil || n != 3 {
			return fmt.Errorf("%v workers are known to be registered, want 3: %w", n, err)
		}
		return nil
	})
	if _, err := get(t.Context(), admin+"/readyz"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("ready without knowing the pods: %v", err)
	}
	p.are(a, "given/32 k8s/n/pool/b false", "given/32 k8s/n/pool/c false")
	resp, err := http.Post(p.in.url+"/unregister", "application/json", strings.NewReader(`{"worker_id":"k8s/n/pool/b","model":"given"}`))
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(err, resp)
	}
	_ = resp.Body.Close() // nothing is read of it
	p.are(a, "given/32 k8s/n/pool/c false")
	p.api.Away(false)
	p.are(a, "given/32 k8s/n/pool/b false")
	if _, err := get(t.Context(), admin+"/readyz"); err != nil {
		t.Error(err)
	}

	// The pool selects others; the pod of a name is another one.
	p.api.Store("pods", kubetest.Pod("b", "5", "127.0.0.4", map[string]string{"app": "new"}, map[string]string{
		"kvatlas/model": "next", "kvatlas/block-size": "32", "kvatlas/events-port": "none"}))
	p.are(a)
	p.api.Store("inferencepools", kubetest.Object{"metadata": map[string]any{"name": "pool"}, "spec": map[string]any{
		"selector": map[string]any{"matchLabels": map[string]string{"app": "new"}}, "targetPorts": []any{map[string]any{"number": 8000}}}})
	p.are("next/32 k8s/n/pool/b false")
	d.stop()
	p.are("next/32 k8s/n/pool/b false")
}

// What is wrong with some pods is no harm to others: odd annotations, addresses that may not be
// registered or that are none. Pods beyond --max-pods are left out and counted, those before are
// registered.
func TestOddPods(t *testing.T) {
	p := &pods{t: t, home: t.TempDir(), api: kubetest.New()}
	server := httptest.NewServer(p.api)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	p.apiURL = server.URL
	p.in = startIndexer(t, p.home, "--registry-beat=50ms")
	label := map[string]string{"app": "vllm"}
	p.api.Store("inferencepools", kubetest.Object{"metadata": map[string]any{"name": "pool"}, "spec": map[string]any{
		"selector": map[string]any{"matchLabels": label}, "targetPorts": []any{map[string]any{"number": 8000}}}})
	store := func(name, ip, note, text string) {
		notes := map[string]string{"kvatlas/model": "m", "kvatlas/block-size": "32", "kvatlas/events-port": "none"}
		if note != "" {
			notes["kvatlas/"+note] = text
		}
		p.api.Store("pods", kubetest.Pod(name, "u-"+name, ip, label, notes))
	}
	for name, odd := range map[string][2]string{
		"odd-a": {"model", strings.Repeat("x", 200_000)}, "odd-c": {"block-size", "-1"}, "odd-d": {"block-size", "99999999999999999999"},
		"odd-e": {"events-port", "65536"}, "odd-f": {"role", "king"}, "odd-h": {"kv-transfer", "x"},
	} {
		store(name, "127.0.0.9", odd[0], odd[1])
	}
	for i, ip := range []string{"", "169.254.169.254", "127.0.0.1:80", "::ffff:169.254.169.254", "localhost", "fe80::1%lo", "127.0.0.1/x"} {
		store(fmt.Sprint("odd-ip-", i), ip, "", "")
	}
	store("plain", "127.0.0.2", "", "")
	store("v6", "::1", "", "")
	store("same-a", "127.0.0.3", "", "") // on the network of their node
	store("same-b", "127.0.0.3", "", "")
	d, admin := p.discover()
	p.are("m/32 k8s/n/pool/plain false", "m/32 k8s/n/pool/same-a false", "m/32 k8s/n/pool/same-b false", "m/32 k8s/n/pool/v6 false")
	if _, err := get(t.Context(), admin+"/readyz"); err != nil {
		t.Error(err)
	}
	d.stop()
	_, admin = p.discover("--max-pods=3")
	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), admin+"/metrics")
		if n := sum(text, "kvatlas_discover_left_out_pods"); err != nil || n != 14 {
			return errors.Join(fmt.Errorf("%v pods are left out, want 14", n), err)
		}
		return nil
	})
}
