package k8s

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long something that is sure to happen is waited for.
const patience = 2 * time.Minute

func until(t *testing.T, f func() error) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// build builds programs into a folder: those of this module, and ours.
func build(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("KVATLAS_K8S_BIN")
	if dir == "" {
		dir = t.TempDir()
	}
	for _, b := range []struct{ in, out, of string }{
		{".", "kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"}, {".", "etcd", "go.etcd.io/etcd/server/v3"},
		{"../..", "kvpods", "./cmd/kvpods"}, {"../..", "kvindexer", "./cmd/kvindexer"}, {"../..", "kvrouter", "./cmd/kvrouter"},
	} {
		cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, b.out), b.of)
		cmd.Dir = b.in
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", b.of, err, out)
		}
	}
	return dir
}

// process is a program that runs until the test ends.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

func run(t *testing.T, path string, args ...string) *process {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(path, args...), log: f.Name(), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = f, f, []string{"HOME=/nonexistent"}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		_ = f.Close()
		if t.Failed() {
			t.Logf("%s, its end:\n%s", path, p.end(4000))
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) end(n int) string {
	text, _ := os.ReadFile(p.log)
	return string(text[max(0, len(text)-n):])
}

func port(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// certificate writes a certificate of 127.0.0.1 that is its own authority.
func certificate(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})))
	return cert, key
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// cluster is an API server with its etcd, and a way to it that can be cut.
type cluster struct {
	t         *testing.T
	bin, dir  string
	etcd      string // URL
	api       int    // port
	cert, key string
	server    *process
	client    *http.Client
	mu        sync.Mutex
	open      bool // the way is
	conns     []net.Conn
	proxy     net.Listener
	finished  sync.WaitGroup
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, bin: build(t), dir: t.TempDir(), open: true, api: port(t)}
	c.cert, c.key = certificate(t, c.dir)
	c.etcd = fmt.Sprint("http://127.0.0.1:", port(t))
	peer := fmt.Sprint("http://127.0.0.1:", port(t))
	run(t, filepath.Join(c.bin, "etcd"), "--data-dir", filepath.Join(c.dir, "etcd"), "--listen-client-urls", c.etcd, "--advertise-client-urls", c.etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync")
	write(t, filepath.Join(c.dir, "tokens"), "admin-token,admin,1,system:masters\ndiscover-token,discover,2\n")
	write(t, filepath.Join(c.dir, "discover"), "discover-token\n")
	pem, err := os.ReadFile(c.cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	c.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	if c.proxy, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c.finished.Go(c.serveProxy)
	t.Cleanup(func() { _ = c.proxy.Close(); c.reachable(false); c.finished.Wait() })
	c.start()
	return c
}

// start starts the API server and waits until it is ready.
func (c *cluster) start() {
	c.t.Helper()
	c.server = run(c.t, filepath.Join(c.bin, "kube-apiserver"), "--etcd-servers", c.etcd, "--bind-address=127.0.0.1", fmt.Sprint("--secure-port=", c.api),
		"--cert-dir", c.dir, "--tls-cert-file", c.cert, "--tls-private-key-file", c.key, "--token-auth-file", filepath.Join(c.dir, "tokens"),
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24", "--service-account-issuer=https://test",
		"--service-account-key-file", c.key, "--service-account-signing-key-file", c.key, "--disable-admission-plugins=ServiceAccount")
	until(c.t, func() error {
		select {
		case <-c.server.done:
			c.t.Fatal("the API server has ended: " + c.server.end(3000))
		default:
		}
		status, text, err := c.ask("GET", "/readyz", nil)
		if err != nil || status != 200 {
			return fmt.Errorf("not ready: %d %.300s %w", status, text, err)
		}
		return nil
	})
}

// serveProxy passes connections on while the way is open.
func (c *cluster) serveProxy() {
	for {
		from, err := c.proxy.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", c.api))
		c.mu.Lock()
		if err != nil || !c.open {
			_ = from.Close()
			if err == nil {
				_ = to.Close()
			}
		} else {
			c.conns = append(c.conns, from, to)
			for _, x := range [][2]net.Conn{{from, to}, {to, from}} {
				c.finished.Go(func() {
					_, _ = io.Copy(x[0], x[1])
					_, _ = x[0].Close(), x[1].Close()
				})
			}
		}
		c.mu.Unlock()
	}
}

// reachable opens the way to the API server, or cuts it and all that goes along it.
func (c *cluster) reachable(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = open
	for _, x := range c.conns {
		_ = x.Close()
	}
	c.conns = nil
}

func (c *cluster) ask(method, path string, body any) (int, string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return 0, "", err
	}
	r, err := http.NewRequest(method, fmt.Sprintf("https://127.0.0.1:%d%s", c.api, path), bytes.NewReader(text))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer admin-token")
	r.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(answer), err
}

// must asks for what has to be done.
func (c *cluster) must(method, path string, body any) {
	c.t.Helper()
	until(c.t, func() error { // the API server may need a moment: its caches, a new kind
		status, text, err := c.ask(method, path, body)
		if err != nil || status >= 300 && (method != "POST" || status != http.StatusConflict) {
			return fmt.Errorf("%s %s: %d %.400s %w", method, path, status, text, err)
		}
		return nil
	})
}

type object = map[string]any

const inNamespace = "/api/v1/namespaces/engines"

// pod creates a pod, and says of it what a kubelet would.
func (c *cluster) pod(name, ip string, labels map[string]string, ready bool) {
	c.t.Helper()
	c.must("POST", inNamespace+"/pods", object{"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "labels": labels, "annotations": object{"kvatlas/model": "m", "kvatlas/block-size": "16", "kvatlas/events-port": "none"}},
		"spec":     object{"containers": []any{object{"name": "engine", "image": "engine"}}}})
	c.status(name, ip, ready)
}

func (c *cluster) status(name, ip string, ready bool) {
	c.t.Helper()
	c.must("PATCH", inNamespace+"/pods/"+name+"/status", object{"status": object{"phase": "Running", "podIP": ip, "podIPs": []any{object{"ip": ip}},
		"conditions": []any{object{"type": "Ready", "status": map[bool]string{true: "True", false: "False"}[ready]}}}})
}

func (c *cluster) remove(name string) {
	c.t.Helper()
	c.must("DELETE", inNamespace+"/pods/"+name, object{"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
}

// Pods of a real API server become workers: with a selector and with a pool, with no more
// rights than the chart gives; pods come and go, the watch is cut, the API server is away
// and starts anew, and its versions are too old.
func TestDiscoveryAgainstAnAPIServer(t *testing.T) {
	c := newCluster(t)
	c.must("POST", "/api/v1/namespaces", object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": "engines"}})
	group := "inference.networking.k8s.io"
	c.kind(group, "v1", "inferencepools", "inferencepool", "InferencePool")
	c.kind(objectivesGroup, "v1alpha2", "inferenceobjectives", "inferenceobjective", "InferenceObjective")
	rbac := "/apis/rbac.authorization.k8s.io/v1/namespaces/engines/"
	c.must("POST", rbac+"roles", object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": object{"name": "discover"}, "rules": []any{
		object{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{"list", "watch"}},
		object{"apiGroups": []any{group}, "resources": []any{"inferencepools"}, "resourceNames": []any{"pool"}, "verbs": []any{"list", "watch"}},
		object{"apiGroups": []any{objectivesGroup}, "resources": []any{"inferenceobjectives"}, "verbs": []any{"list", "watch"}}}})
	c.must("POST", rbac+"rolebindings", object{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": object{"name": "discover"},
		"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "discover"},
		"subjects": []any{object{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "discover"}}})

	f := newFleet(t, c)
	vllm := map[string]string{"app": "vllm"}
	c.pod("a", "127.0.0.1", vllm, true)
	c.pod("b", "127.0.0.2", vllm, false)
	c.pod("other", "127.0.0.9", nil, true)
	f.discover("--selector=app=vllm", "--name=by-label")
	f.are("k8s/engines/by-label/a")
	c.status("b", "127.0.0.2", true)
	f.are("k8s/engines/by-label/a", "k8s/engines/by-label/b")

	// The watch is cut, and pods come and go meanwhile.
	c.reachable(false)
	c.remove("a")
	c.pod("c", "127.0.0.3", vllm, true)
	f.logged("the API server is away")
	c.reachable(true)
	f.are("k8s/engines/by-label/b", "k8s/engines/by-label/c")

	// The API server dies, and starts with a history that is compacted: the version is too old.
	c.reachable(false)
	c.remove("b")
	c.pod("d", "127.0.0.4", vllm, true)
	c.server.kill()
	f.are("k8s/engines/by-label/b", "k8s/engines/by-label/c") // what was known holds
	c.compact()
	c.start()
	c.reachable(true)
	f.are("k8s/engines/by-label/c", "k8s/engines/by-label/d")
	f.logged("too old")

	// A pod that is being deleted departs while it is still there.
	c.must("PATCH", inNamespace+"/pods/d", object{"metadata": object{"finalizers": []any{"kvatlas.test/wait"}}})
	c.remove("d")
	f.are("k8s/engines/by-label/c")

	// Now by a pool, beside the other.
	c.must("POST", "/apis/"+group+"/v1/namespaces/engines/inferencepools", object{"apiVersion": group + "/v1", "kind": "InferencePool", "metadata": object{"name": "pool"},
		"spec": object{"selector": object{"matchLabels": vllm}, "targetPorts": []any{object{"number": 8000}, object{"number": 8001}}}})
	f.discover("--pool=pool")
	f.are("k8s/engines/by-label/c", "k8s/engines/pool/c-rank-0", "k8s/engines/pool/c-rank-1")
	c.must("PATCH", "/apis/"+group+"/v1/namespaces/engines/inferencepools/pool", object{"spec": object{"targetPorts": []any{object{"number": 8000}}}})
	f.are("k8s/engines/by-label/c", "k8s/engines/pool/c")
	c.remove("c")
	f.are()

	c.objectives(t)
}

// compact makes etcd forget all versions but the last.
func (c *cluster) compact() {
	c.t.Helper()
	post := func(path, body string) (m struct{ Header struct{ Revision string } }) {
		resp, err := http.Post(c.etcd+path, "application/json", strings.NewReader(body))
		if err != nil {
			c.t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&m); err != nil || resp.StatusCode != 200 {
			c.t.Fatal(resp.Status, err)
		}
		return m
	}
	m := post("/v3/kv/range", `{"key":"Lw=="}`)
	post("/v3/kv/compaction", fmt.Sprintf(`{"revision":%q,"physical":true}`, m.Header.Revision))
}

// fleet is an indexer, and what discovers for it.
type fleet struct {
	t   *testing.T
	c   *cluster
	url string
	all []*process
}

func newFleet(t *testing.T, c *cluster) *fleet {
	f := &fleet{t: t, c: c}
	address := filepath.Join(t.TempDir(), "address")
	run(t, filepath.Join(c.bin, "kvindexer"), "--data-dir", t.TempDir(), "--http-listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--address-file", address, "--registry-beat=50ms")
	until(t, func() error {
		text, err := os.ReadFile(address)
		if err != nil {
			return err
		}
		f.url = "http://" + strings.TrimSpace(string(text))
		resp, err := http.Get(f.url + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != 200 {
				err = fmt.Errorf("not ready: %s", resp.Status)
			}
		}
		return err
	})
	return f
}

func (f *fleet) discover(args ...string) {
	f.all = append(f.all, run(f.t, filepath.Join(f.c.bin, "kvpods"), append([]string{"--kube-api", "https://" + f.c.proxy.Addr().String(), "--kube-ca", f.c.cert,
		"--kube-token-file", filepath.Join(f.c.dir, "discover"), "--kube-namespace=engines", "--register-at", f.url, "--every=100ms", "--retry=50ms",
		"--admin-listen=127.0.0.1:0"}, args...)...))
}

func (f *fleet) logged(what string) {
	f.t.Helper()
	until(f.t, func() error {
		for _, p := range f.all {
			if strings.Contains(p.end(1<<20), what) {
				return nil
			}
		}
		return fmt.Errorf("nothing is logged with %q", what)
	})
}

// are waits until those and no others are registered.
func (f *fleet) are(want ...string) {
	f.t.Helper()
	until(f.t, func() error {
		resp, err := http.Get(f.url + "/workers")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var list []struct {
			Name string `json:"instance_id"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
			return err
		}
		var got []string
		for _, w := range list {
			got = append(got, w.Name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q", got, want)
		}
		return nil
	})
}
