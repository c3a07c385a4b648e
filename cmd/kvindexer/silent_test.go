package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// With NATS gone what is known is of before: after a while it is shown as stale in every place,
// and as fresh again once NATS is heard.
func TestWhatIsKnownGrowsStaleWithoutNATS(t *testing.T) {
	s := newServed(t)
	p := start(t, "--data-dir", s.dir, "--no-snapshots", "--stale-after=500ms", "--discover-every=50ms")
	s.publish(20)
	s.compare(p)
	shows := func(status int, state string) {
		t.Helper()
		waittest.Until(t, func() error {
			is, why, err := p.ask("GET", "/readyz?verbose", "")
			list := p.streams()
			other := slices.ContainsFunc(list, func(s streamOf) bool {
				return s.state != state || strings.Contains(s.err, "nothing has been heard of NATS") != (status != 200)
			})
			if n := p.metric("kvatlas_ingest_stale_ranks") == "0"; err != nil || is != status || len(list) == 0 || other || n != (status == 200) {
				return fmt.Errorf("status %d: %s %+v %w", is, why, list, err)
			}
			_, data, err := p.ask("GET", "/v1/workers", "")
			if err != nil || strings.Contains(data, `"stale":true`) != (status != 200) || !strings.Contains(data, `"as_of"`) {
				return fmt.Errorf("%s %w", data, err)
			}
			return nil
		})
	}
	shows(200, "following")
	s.stopped(func() {
		shows(503, "incomplete")
		s.compare(p) // it is answered all the same
	})
	shows(200, "following")
}

// A connection that is lost shows before what is known counts as stale, and keeps nobody from asking.
func TestALostConnectionShowsBeforeWhatIsKnownIsStale(t *testing.T) {
	s := newServed(t)
	p := start(t, "--data-dir", s.dir, "--no-snapshots", "--registry-beat=100ms")
	p.answers("GET", "/readyz?verbose", "", 200, `{"name":"registry","ok":true}`)
	s.stopped(func() {
		p.answers("GET", "/readyz?verbose", "", 200, `{"name":"registry","ok":false,"reason":"this replica's beats do not come back from NATS`)
	})
	p.answers("GET", "/readyz?verbose", "", 200, `{"name":"registry","ok":true}`)
}
