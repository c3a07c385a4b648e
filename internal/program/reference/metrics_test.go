package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A row of docs/metrics.md of what did not happen in the run that it was made from
// is only a help text: some line of the code must make its samples, with labels that
// the text names.
func TestWhatIsExplainedIsCountedSomewhere(t *testing.T) {
	g, err := once()
	if err != nil {
		t.Fatal(err)
	}
	code := sources(t)
	for _, f := range g.metrics {
		if f.made {
			continue
		}
		labels, made := madeWith(code, f.name)
		if !made {
			t.Errorf("%s has a help text, and nothing makes a sample of it", f.name)
		}
		f.labels = labels
		if err := f.fault(); err != nil {
			t.Error(err)
		}
	}
	if _, made := madeWith(code, "kvatlas_nothing_of_the_kind_total"); made {
		t.Error("a metric that nothing makes is found")
	}
}

// madeWith returns the labels with which the code makes samples of a metric, as
// far as they stand beside its name, and whether it makes any.
func madeWith(code, name string) (labels []string, made bool) {
	patterns := name + `\{([a-z_]+)=|Name\("` + name + `", "([a-z_]+)"|(?:Counter\(|= )"` + name + `"`
	for _, m := range regexp.MustCompile(patterns).FindAllStringSubmatch(code, -1) {
		if made = true; m[1]+m[2] != "" {
			labels = append(labels, m[1]+m[2])
		}
	}
	return labels, made
}

// sources returns the lines of all files of the product that may name a metric: no pattern
// goes beyond a line, and to look through all of them for each metric takes a minute.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // our own sources
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "kvatlas_") {
				all.WriteString(line)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func TestFaultsOfMetricsAreFound(t *testing.T) {
	const text = `# HELP kvatlas_a_total Number of a, by reason.
# TYPE kvatlas_a_total counter
kvatlas_a_total{model="m, no reason=\"x\"",reason="b"} 3
# HELP kvatlas_never_total What never happened.
# HELP kvatlas_t_seconds Time.
# TYPE kvatlas_t_seconds histogram
kvatlas_t_seconds_bucket{le="1"} 3
kvatlas_t_seconds_sum 2
# HELP kvatlas_a_count A gauge.
# TYPE kvatlas_a_count gauge
kvatlas_a_count 2
`
	wrong := map[string]string{ // by the fault
		"kvatlas_b_total has no help text":           "kvatlas_b_total 1\n",
		"does not name the label way":                "# HELP kvatlas_b_total Number of b.\n# TYPE kvatlas_b_total counter\nkvatlas_b_total{way=\"x\"} 1\n",
		"kvatlas_b is a counter":                     "# HELP kvatlas_b Number of b.\n# TYPE kvatlas_b counter\nkvatlas_b 1\n",
		"kvatlas_b_total is a gauge":                 "# HELP kvatlas_b_total Number of b.\n# TYPE kvatlas_b_total gauge\nkvatlas_b_total 1\n",
		"kvatlas_b_seconds has no sample: expose it": "# HELP kvatlas_b_seconds Time.\n",
	}
	for _, f := range parse(text) {
		if err := f.fault(); err != nil {
			t.Error(err)
		}
	}
	if n := len(parse(text)); n != 4 {
		t.Errorf("%d families", n)
	}
	for want, more := range wrong {
		list := parse(text + more)
		if err := list[len(list)-1].fault(); len(list) != 5 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
