package deploy

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// refused returns why Prometheus takes some of the expressions not, by their
// index. It asks the parser of the release that tools/promql pins.
func refused(t *testing.T, expressions []string) map[int]string {
	t.Helper()
	if os.Getenv("KVATLAS_TEST_DEPLOY") != "1" {
		t.Skip("skipped: make test-deploy runs it, with Prometheus' parser as a Go tool")
	}
	var in, out, errs bytes.Buffer
	for _, e := range expressions {
		if err := json.NewEncoder(&in).Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "run", "-C", "../tools/promql", ".")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.Bytes())
	}
	found := map[int]string{}
	for line := range strings.Lines(out.String()) {
		number, why, _ := strings.Cut(line, ": ")
		n, err := strconv.Atoi(number)
		if err != nil {
			t.Fatalf("%v in\n%s", err, out.Bytes())
		}
		found[n-1] = strings.TrimSpace(why)
	}
	return found
}

func TestPrometheusTakesEveryExpression(t *testing.T) {
	all := expressions(t)
	names := slices.Sorted(maps.Keys(all))
	// Grafana's variable is a duration; the rest is not PromQL, to see that this
	// is noticed.
	asked := []string{"rate(x)", "sum by (a (x)", "nosuch(x)"}
	for _, name := range names {
		asked = append(asked, strings.ReplaceAll(all[name], "$__rate_interval", "5m"))
	}
	why := refused(t, asked)
	for i := range asked {
		switch {
		case i < 3 && why[i] == "":
			t.Errorf("%s is taken", asked[i])
		case i >= 3 && why[i] != "":
			t.Errorf("%s: %s\n%s", names[i-3], why[i], asked[i])
		}
	}
}
