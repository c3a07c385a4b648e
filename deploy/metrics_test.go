package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvatlas/kvatlas/internal/testing/admintest"
)

// What the example has an autoscaler go by is there: the adapter's series are metrics of the
// programs, and the chart's and the example's autoscalers ask for what the adapter names.
func TestAutoscalersGoByWhatThereIs(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	adapter, documented := read("example/adapter.yaml"), read("../docs/metrics.md")
	for _, found := range regexp.MustCompile(`seriesQuery: '(kvatlas_[a-z_]+?)(_sum)?\{`).FindAllStringSubmatch(adapter, -1) {
		if !strings.Contains(documented, "| `"+found[1]+"` |") {
			t.Errorf("the adapter asks for %s, which is no metric", found[1])
		}
	}
	asked := 0
	for _, name := range []string{"example/scaling.yaml", "helm/kvatlas/templates/router.yaml"} {
		for _, found := range regexp.MustCompile(`metric: \{name: ([a-z_]+)\}`).FindAllStringSubmatch(read(name), -1) {
			if asked++; !strings.Contains(adapter, "name: {as: "+found[1]+"}") {
				t.Errorf("%s goes by %s, which the adapter does not name", name, found[1])
			}
		}
	}
	if asked != 4 {
		t.Errorf("autoscalers go by %d metrics", asked)
	}
}

// scraped returns the families that each program exposes, with the names of
// their labels. What their admin ports answer is compared with its document.
func scraped(t *testing.T) map[string]map[string][]string {
	t.Helper()
	dir := t.TempDir()
	addressOf := func(name string) string { return filepath.Join(dir, name) }
	common := []string{"--data-dir=" + filepath.Join(dir, "data"), "--log-format=json"}
	indexer := start(t, "kvindexer", append(common, "--http-listen=127.0.0.1:0", "--address-file="+addressOf("i"), "--discover-every=20ms")...)
	ready := func(p *process, name string) string {
		url := p.address(addressOf(name))
		p.eventually(func() error {
			_, err := get(t.Context(), url+"/readyz")
			return err
		})
		return url
	}
	texts := map[string]string{}
	url := ready(indexer, "i")
	mocker := start(t, "kvmocker", "--data-dir="+filepath.Join(dir, "data"), "--workers=2", "--requests=20", "--speed=0", "--progress=none")
	if code := mocker.wait(); code != 0 {
		t.Fatalf("kvmocker: %d", code)
	}
	router := start(t, "kvrouter", append(common, "--http-listen=127.0.0.1:0", "--address-file="+addressOf("r"), "--discover-every=20ms", "--picker-listen=127.0.0.1:0")...)
	publisher := start(t, "kvpublisher", append(common, "--admin-listen=127.0.0.1:0", "--address-file="+addressOf("p"), "--socket="+socketPath(t), "--worker=1", "--model=m", "--state-dir=none")...)
	pods := start(t, "kvpods", "--log-format=json", "--admin-listen=127.0.0.1:0", "--address-file="+addressOf("k"), "--kube-api=http://127.0.0.1:1", "--kube-namespace=n", "--selector=a=b", "--name=n", "--register-at="+url)
	for name, p := range map[string]struct {
		*process
		url, part string
	}{
		"kvpods":      {pods, pods.address(addressOf("k")), "kvatlas_discover_endpoints{"},
		"kvindexer":   {indexer, url, `kvatlas_index_blocks{model="mock"`},
		"kvrouter":    {router, ready(router, "r"), "kvatlas_ingest_lag_seconds{"},
		"kvpublisher": {publisher, publisher.address(addressOf("p")), "kvatlas_publish_messages_total"},
	} {
		p.eventually(func() (err error) {
			texts[name], err = get(t.Context(), p.url+"/metrics")
			if err == nil && !strings.Contains(texts[name], p.part) {
				err = fmt.Errorf("%s: no %s", name, p.part)
			}
			return err
		})
		admintest.Check(t, p.adminAddress())
	}
	all := map[string]map[string][]string{}
	for name, text := range texts {
		all[name] = families(t, name, text)
	}
	for _, p := range []*process{pods, publisher, router, indexer} {
		if code := p.stop(); code != 0 {
			t.Errorf("%v: exit code %d", p.cmd.Args, code)
		}
	}
	return all
}

// socketPath returns a path short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // a socket's path is at most 107 bytes long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? `)
var histogram = regexp.MustCompile(`_(bucket|sum|count)$`)
var labelName = regexp.MustCompile(`(?:^|,)([a-zA-Z_]+)="`)

// families reads an exposition: the metrics' names and their labels. What counts
// what has not happened has a HELP line only.
func families(t *testing.T, program, text string) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, _, _ := strings.Cut(rest, " ")
			found[name] = []string{}
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s: no sample: %q", program, line)
			continue
		}
		name := m[1]
		if _, ok := found[name]; !ok {
			name = histogram.ReplaceAllString(name, "")
		}
		for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(found[name], l[1]) {
				found[name] = append(found[name], l[1])
			}
		}
	}
	return found
}

// expressions returns every expression of the dashboard and the alerts.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	data, err := os.ReadFile("helm/kvatlas/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("panel %s, %d", p.Title, i)] = target.Expr
		}
	}
	if data, err = os.ReadFile("helm/kvatlas/files/alerts.yaml"); err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr         string
				For                 time.Duration // Prometheus' durations up to hours are Go's, too
				Labels, Annotations map[string]string
			}
		}
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s says nothing", r.Alert)
			}
			if s := r.Labels["severity"]; s != "warning" && s != "critical" {
				t.Errorf("%s is of severity %q", r.Alert, s)
			}
			all["alert "+r.Alert] = r.Expr
		}
	}
	if len(all) < 50 {
		t.Errorf("only %d expressions", len(all))
	}
	return all
}

var metricName = regexp.MustCompile(`\b(?:kvatlas|process|go)_[a-z0-9_]+(?:\{[^}]*\})?`)
var matcher = regexp.MustCompile(`([a-z_]+)(?:=~|!~|!=|=)"`)

// Labels that Prometheus adds.
var added = []string{"job", "instance"}

func TestEveryMetricThatIsNamedExists(t *testing.T) {
	known := map[string][]string{}
	exposed := scraped(t)
	for _, list := range exposed {
		for name, labels := range list {
			known[name] = append(known[name], labels...)
		}
	}
	for where, expr := range expressions(t) {
		named := metricName.FindAllString(expr, -1)
		if len(named) == 0 {
			t.Errorf("%s names no metric: %s", where, expr)
		}
		for _, pair := range []string{"()", "{}", "[]"} {
			if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
				t.Errorf("%s: a bracket is missing: %s", where, expr)
			}
		}
		for _, n := range named {
			name, selector, _ := strings.Cut(n, "{")
			name = strings.TrimSuffix(name, "_bucket")
			labels, ok := known[name]
			if !ok {
				t.Errorf("%s: nobody exposes %s", where, name)
			}
			for _, m := range matcher.FindAllStringSubmatch(selector, -1) {
				if len(labels) > 0 && !slices.Contains(labels, m[1]) && !slices.Contains(added, m[1]) {
					t.Errorf("%s: %s has no label %s, but %v", where, name, m[1], labels)
				}
			}
		}
	}
	for program, list := range exposed {
		for _, name := range []string{"kvatlas_build_info", "kvatlas_ready", "go_goroutines"} {
			if list[name] == nil {
				t.Errorf("%s does not expose %s", program, name)
			}
		}
	}
}

// Indexers and routers have an index each. What both expose is shown of each, or
// by job: a sum over both means nothing.
func TestIndexersAndRoutersAreNotAddedUp(t *testing.T) {
	aggregate := regexp.MustCompile(`\b(?:sum|max)\b(?: by \(([^)]*)\))?`)
	shared := regexp.MustCompile(`kvatlas_(?:index|ingest)_`)
	n := 0
	for where, expr := range expressions(t) {
		if !shared.MatchString(expr) {
			continue
		}
		for _, m := range aggregate.FindAllStringSubmatch(expr, -1) {
			if n++; !strings.Contains(m[1], "job") {
				t.Errorf("%s: %s over jobs in %s", where, m[0], expr)
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d sums", n)
	}
}

// What to do about each alert is in docs/operations.md, which names no others.
func TestEachAlertIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`Kvatlas[A-Za-z]+`).FindAllString(string(text), -1)
	all := expressions(t)
	for where := range all {
		if name, ok := strings.CutPrefix(where, "alert "); ok && !slices.Contains(named, name) {
			t.Errorf("docs/operations.md does not name %s", name)
		}
	}
	for _, name := range named {
		if all["alert "+name] == "" {
			t.Errorf("docs/operations.md names %s, and there is no such alert", name)
		}
	}
}

// The metrics that docs/operations.md names are those of docs/metrics.md.
func TestEachMetricOfTheDocumentsExists(t *testing.T) {
	reference, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	name := regexp.MustCompile("`(kvatlas_[a-z]+_[a-z0-9_]*[a-z])[`{]")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			metric := "| `" + m[1] + "` |"
			if strings.HasPrefix(m[1], "kvatlas_engine_") { // what engines are asked for
				continue
			}
			if !strings.Contains(string(reference), metric) {
				t.Errorf("%s names %s, which no program exposes", page, m[1])
			}
		}
	}
}
