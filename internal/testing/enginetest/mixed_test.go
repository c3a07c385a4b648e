package enginetest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/shard"
)

// path is a rank of a mixed fleet, and the way that its events take.
type path struct {
	*rank
	worker uint64
	// live and missed return how many batches came live, and how many did not,
	// as the metrics of the way have it.
	live, missed func() int
}

// life publishes a history with batches lost on purpose, kills the publisher and
// has another take its place.
func (p *path) life(set *shard.Set) {
	// libzmq takes a while to put a subscription into effect.
	for p.live() == 0 {
		if len(p.history.Batches) >= quietTo-10 {
			p.t.Errorf("%s: nothing comes live", p.name)
			return
		}
		p.publish(1)
		<-time.After(50 * time.Millisecond)
	}
	p.publish(batches - len(p.history.Batches))
	p.agree(set, p.worker)
	if missed := p.missed(); missed < p.dropped {
		p.t.Errorf("%s: %d batches were dropped, %d are counted as missed", p.name, p.dropped, missed)
	}
	p.process.Kill()
	p.seed += 1000
	p.pub.Drop = nil
	p.start()
	p.publish(300)
	p.agree(set, p.worker)
	p.t.Logf("%s, worker %d: %d batches dropped, %d counted as missed", p.name, p.worker, p.dropped, p.missed())
}

// sidecar starts kvpublisher beside the rank's publisher; it returns what reads
// the sum of a family of its metrics.
func (k *rank) sidecar(bin, dir string, worker uint64, transport string) (metric func(family, label string) int) {
	k.t.Helper()
	file := filepath.Join(k.t.TempDir(), "address")
	cmd := exec.Command(bin, "--data-dir", dir, "--admin-listen=127.0.0.1:0", "--address-file", file,
		fmt.Sprint("--worker=", worker), "--model=m", fmt.Sprint("--block-size=", BlockSize),
		fmt.Sprint("--dp-ranks=", k.pub.Rank), "--engine", k.pub.Endpoint, "--engine-replay", k.pub.Replay,
		"--transport", transport, "--log-level=warn")
	cmd.Stderr, cmd.Env = os.Stderr, []string{"HOME=/nonexistent"}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return func(family, label string) (sum int) {
		address, err := os.ReadFile(file)
		if err != nil {
			return 0 // it is starting
		}
		resp, err := http.Get("http://" + strings.TrimSpace(string(address)) + "/metrics")
		if err != nil {
			return 0
		}
		defer resp.Body.Close() //nolint:errcheck // it is read
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, " ")
			n := 0
			if _, err := fmt.Sscan(value, &n); err == nil && strings.HasPrefix(name, family) && strings.Contains(name, label) {
				sum += n
			}
		}
		return sum
	}
}

// TestMixedFleetOnEveryPath has ranks of all releases at once in one index: some
// through kvpublisher and a stream, some through kvpublisher and core NATS, and
// some followed directly.
func TestMixedFleetOnEveryPath(t *testing.T) {
	h := Open(t)
	bin := filepath.Join(t.TempDir(), "kvpublisher")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/kvatlas/kvatlas/cmd/kvpublisher").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	b, err := broker.Open(t.Context(), broker.Config{URL: broker.Embedded, DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // the test is over
	set := shard.New(shard.Config{Shards: 2})
	defer set.Close()
	index := func(id event.Space) (ingest.Applier, error) { return set.Open(id) }
	in, err := ingest.Open(t.Context(), ingest.Config{Conn: b.Conn(), Replica: "test", Discover: 50 * time.Millisecond, Index: index})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	d, err := direct.New(direct.Config{Index: index})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var fleet []*path
	for i, r := range Releases() {
		h.Fetch(t, r)
		for n, way := range []string{"jetstream", "core", "direct"} {
			seed, number := uint64(10*i+n), uint32(n)
			k := &rank{t: t, name: r.Name + " " + way, harness: h, seed: seed, pub: Publisher{Release: r, Rank: number, Drop: drops(seed, batches/2)}}
			k.start()
			p := &path{rank: k, worker: 100 + seed}
			if way == "direct" {
				key := direct.Key{Space: pathSpace, Worker: p.worker}
				if err := d.Follow(key, map[uint32]direct.Endpoint{number: {Events: k.process.RankEndpoint, Replay: k.process.RankReplay}}); err != nil {
					t.Fatal(err)
				}
				p.live = func() int { return int(d.Feeds(key)[number].Live) }
				p.missed = func() int { return int(d.Feeds(key)[number].Missed) }
			} else {
				metric := k.sidecar(bin, dir, p.worker, way)
				p.live = func() int { return metric("kvatlas_publisher_feed_batches_total", `way="live"`) }
				p.missed = func() int { return metric("kvatlas_publisher_feed_missed_batches_total", "") }
			}
			fleet = append(fleet, p)
		}
	}
	// The three of a release start their publishers from one file: one after
	// the other.
	var wg sync.WaitGroup
	for i := 0; i < len(fleet); i += 3 {
		wg.Go(func() {
			for _, p := range fleet[i : i+3] {
				p.life(set)
			}
		})
	}
	wg.Wait()
	for _, s := range in.Ranks() {
		if s.Gaps > 0 || s.UnknownParents > 0 || s.Incomplete {
			t.Errorf("%+v", s)
		}
	}
}
