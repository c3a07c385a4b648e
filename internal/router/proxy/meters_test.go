package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// However many tenants there are, metrics name so many, and every request is counted;
// a worker that has left makes room for others.
func TestLabelsAreBounded(t *testing.T) {
	l := newLab(t, setup{engines: 2})
	set := obs.NewSet()
	s := newMeters(set, 3)
	for i := range 100 {
		q := &call{m: l.model(), payer: payer{name: fmt.Sprint("t", i%10)}, tally: tally{status: 200, outcome: "ok", attempts: 1, at: shard.RankID{Worker: uint64(i % 2)}}}
		s.request(q, time.Second)
	}
	text := func() string {
		var b bytes.Buffer
		set.WritePrometheus(&b)
		return b.String()
	}
	count := func(label, result string) (series, sum int) {
		for line := range strings.Lines(text()) {
			var n int
			if strings.HasPrefix(line, "kvatlas_router_"+label+"_requests_total{") && strings.Contains(line, `result="`+result+`"`) {
				if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &n); err != nil {
					t.Fatal(err)
				}
				series, sum = series+1, sum+n
			}
		}
		return series, sum
	}
	if series, sum := count("tenant", "ok"); series != 4 || sum != 100 || !strings.Contains(text(), `tenant="other",result="ok"} 70`) {
		t.Errorf("%d series of tenants count %d", series, sum)
	}
	if series, sum := count("worker", "ok"); series != 3 || sum != 100 {
		t.Errorf("%d series of workers count %d", series, sum)
	}
	l.fleet.RemoveWorker(registry.Key{Space: space, Worker: 1})
	if s.prune(); strings.Contains(text(), `worker="1"`) || !strings.Contains(text(), `worker="0"`) || s.workers != 1 {
		t.Error("who has left is still named")
	}
}

// What is not used costs a request nothing: no limit, no log.
func TestWhatIsNotSetCostsNothing(t *testing.T) {
	l := newLab(t, setup{})
	q := &call{m: l.model(), arrival: time.Now(), payer: payer{name: anonymous}, tally: tally{status: 200, outcome: "ok", attempts: 1, first: 1, output: 2, prompt: 3}}
	l.proxy.finish(q) // makes the metrics
	if n := testing.AllocsPerRun(100, func() { l.proxy.finish(q) }); n > 0 {
		t.Errorf("the end of a request allocates %v times", n)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", http.NoBody)
	if n := testing.AllocsPerRun(100, func() {
		if _, no := l.proxy.payerOf(r, false); no != nil || l.proxy.charge(r, q) != nil {
			t.Fatal("refused")
		}
	}); n > 0 {
		t.Errorf("no limit allocates %v times", n)
	}
}
