package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
)

// earlier is the commit that stands for the last release until there is one.
const earlier = "22cfe8f"

// earlierPrograms builds the programs of that commit, or skips the test.
func earlierPrograms(t *testing.T) string {
	t.Helper()
	if os.Getenv("KVATLAS_TEST_UPGRADE") != "1" {
		t.Skip("skipped: make test-upgrade runs it, with programs of an earlier commit")
	}
	dir := os.Getenv("KVATLAS_EARLIER_BIN") // built already
	if dir != "" {
		return dir
	}
	source, dir := t.TempDir(), t.TempDir()
	if out, err := exec.Command("sh", "-c", "cd ../../.. && git archive "+earlier+" | tar -x -C "+source).CombinedOutput(); err != nil { //nolint:gosec // our own folders
		t.Fatalf("commit %s is not here (git fetch --unshallow brings all): %v %s", earlier, err, out)
	}
	// As make test builds: what is compiled is then found again by the next test, in another folder.
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/", "./cmd/kvindexer", "./cmd/kvrouter", "./cmd/kvpublisher")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", earlier, err, out)
	}
	return dir
}

// mixed is a fleet of old and new programs on one NATS server.
type mixed struct {
	t    *testing.T
	home string
	dirs map[string]string // of the programs, by "old" and "new"
	n    int
}

// program starts one of either kind, and returns where it answers.
func (m *mixed) program(age, name string, args ...string) (*process, string) {
	m.t.Helper()
	m.n++
	address := filepath.Join(m.home, fmt.Sprint("address", m.n))
	args = append(slices.Clone(args), "--data-dir", filepath.Join(m.home, "data"), "--address-file", address)
	if name != "kvpublisher" || age == "old" { // whose only port had that name
		args = append(args, "--http-listen=127.0.0.1:0")
	}
	if name != "kvpublisher" || age == "new" {
		args = append(args, "--admin-listen=127.0.0.1:0")
	}
	p := startPath(m.t, m.home, filepath.Join(m.dirs[age], name), args...)
	var url string
	eventually(m.t, time.Minute, func() error {
		select {
		case <-p.done:
			m.t.Fatalf("%s %s has ended: %v", age, name, p.err)
		default:
		}
		text, err := os.ReadFile(address)
		if err != nil {
			return err
		}
		url = "http://" + strings.TrimSpace(string(text))
		_, err = get(m.t.Context(), url+"/readyz")
		return err
	})
	return p, url
}

// publisher starts a kvpublisher beside a mock engine of its own.
func (m *mixed) publisher(age string, worker uint64, transport string, engine *enginetest.Mock) *process {
	events, replay := engine.Endpoint(0)
	p, _ := m.program(age, "kvpublisher", fmt.Sprint("--worker=", worker), "--model=m", fmt.Sprint("--block-size=", enginetest.BlockSize), "--transport="+transport,
		"--engine="+events, "--engine-replay="+replay, fmt.Sprintf("--engine-http=http://127.0.0.1:%d", worker), "--state-dir="+filepath.Join(m.home, fmt.Sprint("state", worker)))
	return p
}

// holds waits until an index has what the engine has, by the oracle.
func (m *mixed) holds(what, url string, worker uint64, engine *enginetest.Mock) {
	m.t.Helper()
	want := engine.Oracle(0, 0)
	var matches core.Matches
	for i, n := range want.KnownHashes(0) {
		if i%7 != 0 {
			continue // some of them
		}
		query := want.Chain(0, n.Engine)
		var depth uint32
		want.Find(query, &matches)
		matches.Each(event.Device, func(_ core.Holder, d uint32) { depth = d })
		body, err := json.Marshal(map[string]any{"model": "m", "hashes": query})
		if err != nil {
			m.t.Fatal(err)
		}
		eventually(m.t, time.Minute, func() error {
			got, err := depthOf(url, string(body), worker)
			if err == nil && got != depth {
				err = fmt.Errorf("%s: worker %d has %d of %d blocks, want %d", what, worker, got, len(query), depth)
			}
			return err
		})
	}
}

// depthOf asks an index how much of a prompt a worker has on its device.
func depthOf(url, body string, worker uint64) (uint32, error) {
	resp, err := http.Post(url+"/v1/find_matches", "application/json", strings.NewReader(body)) //nolint:gosec // our own program
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s %w", resp.Status, text, err)
	}
	var m struct {
		Spaces []struct {
			Workers []struct {
				ID    string `json:"worker_id"`
				Ranks []struct{ Device uint32 }
			}
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return 0, err
	}
	for _, sp := range m.Spaces {
		for _, w := range sp.Workers {
			if w.ID == fmt.Sprint(worker) && len(w.Ranks) == 1 {
				return w.Ranks[0].Device, nil
			}
		}
	}
	return 0, nil
}

func newMixed(t *testing.T) *mixed {
	old := earlierPrograms(t)
	dir, err := binaries.Dir()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	return &mixed{t: t, home: home, dirs: map[string]string{"old": old, "new": dir}}
}

// other is the age that is not that.
func other(age string) string { return map[string]string{"old": "new", "new": "old"}[age] }

// Publishers and indexers of both ages on the NATS server of either: each index has what
// every engine has, of those that were there before it, by stream or by asking, too.
func TestPublishersAndIndexersOfTwoVersions(t *testing.T) {
	for _, first := range []string{"old", "new"} {
		t.Run(first+" server", func(t *testing.T) {
			m := newMixed(t)
			engines := map[uint64]*enginetest.Mock{}
			indexes := map[string]string{}
			_, indexes[first+" first"] = m.program(first, "kvindexer") // its NATS server is all others'
			for i, x := range [][2]string{{"old", "jetstream"}, {"new", "jetstream"}, {"old", "core"}, {"new", "core"}} {
				worker := uint64(i + 1)
				engines[worker] = enginetest.NewMock(t, worker, 1, 0)
				m.publisher(x[0], worker, x[1], engines[worker])
				engines[worker].Publish(60)
			}
			_, indexes[other(first)+" after events"] = m.program(other(first), "kvindexer")
			for _, e := range engines {
				e.Publish(60)
			}
			_, indexes[first+" after all"] = m.program(first, "kvindexer")
			for what, url := range indexes {
				for worker, e := range engines {
					m.holds(what, url, worker, e)
				}
			}
		})
	}
}

// A publisher is upgraded and taken back beside its engine: its kept state is read.
func TestAPublisherIsUpgradedAndTakenBack(t *testing.T) {
	m := newMixed(t)
	_, url := m.program("new", "kvindexer")
	engine := enginetest.NewMock(t, 3, 1, 0)
	for _, age := range []string{"old", "new", "old"} {
		p := m.publisher(age, 7, "jetstream", engine)
		engine.Publish(50)
		m.holds("while "+age, url, 7, engine)
		p.stop()
	}
}

// A snapshot of either age is where a replica of the other begins; the publisher is gone,
// and answers for nothing.
func TestSnapshotsOfTwoVersions(t *testing.T) {
	for _, first := range []string{"old", "new"} {
		t.Run(first+" snapshot", func(t *testing.T) {
			m := newMixed(t)
			m.program("new", "kvindexer", "--no-snapshots") // its NATS server is all others'
			engine := enginetest.NewMock(t, 4, 1, 0)
			taker, at := m.program(first, "kvindexer", "--replica=taker")
			p := m.publisher(first, 7, "jetstream", engine)
			engine.Publish(80)
			m.holds("the taker", at, 7, engine)
			taker.stop() // takes a snapshot
			p.kill()
			_, at = m.program(other(first), "kvindexer", "--replica=reader")
			m.holds("the reader", at, 7, engine)
			text, err := get(t.Context(), at+"/metrics")
			if n := sum(text, "kvatlas_snapshot_restores_total", `result="loaded"`); err != nil || n == 0 {
				t.Errorf("no snapshot was loaded: %v", err)
			}
		})
	}
}

// What one router books another knows, also of the other age; and no longer once it is freed.
func TestRoutersOfTwoVersions(t *testing.T) {
	m := newMixed(t)
	m.program("new", "kvindexer")
	m.publisher("old", 7, "jetstream", enginetest.NewMock(t, 5, 1, 0))
	urls := map[string]string{}
	for _, age := range []string{"old", "new"} {
		_, urls[age] = m.program(age, "kvrouter")
	}
	loads := func(age string) string {
		text, err := get(t.Context(), urls[age]+"/v1/loads?model_name=m")
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	call := func(method, url, body string) {
		t.Helper()
		eventually(t, time.Minute, func() error { // the worker may not be there yet
			req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
			if err != nil {
				return err
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close() //nolint:errcheck // read to its end
			text, err := io.ReadAll(resp.Body)
			if err == nil && resp.StatusCode >= 300 {
				err = fmt.Errorf("%s %s: %s %s", method, url, resp.Status, text)
			}
			return err
		})
	}
	for _, age := range []string{"old", "new"} {
		call("POST", urls[age]+"/v1/select", `{"selection_id":"s","model_name":"m","token_ids":[1,2,3,4,5,6,7,8]}`) // it knows the worker
		idle := loads(other(age))
		call("POST", urls[age]+"/v1/select_and_reserve", `{"selection_id":"`+age+`","model_name":"m","token_ids":[1,2,3,4,5,6,7,8]}`)
		eventually(t, time.Minute, func() error {
			if now := loads(other(age)); now == idle {
				return fmt.Errorf("the %s router does not know of the %s one's booking: %s", other(age), age, now)
			}
			return nil
		})
		call("DELETE", urls[age]+"/v1/reservations/"+age, "")
		eventually(t, time.Minute, func() error {
			if now := loads(other(age)); now != idle {
				return fmt.Errorf("the %s router still has the %s one's booking: %s, before %s", other(age), age, now, idle)
			}
			return nil
		})
	}
}
