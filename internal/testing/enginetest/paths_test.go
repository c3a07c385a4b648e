package enginetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/shard"
)

var pathSpace = event.Space{Model: "m", BlockSize: BlockSize}

// agree waits until the space says of the rank what the history says.
func (k *rank) agree(set *shard.Set, worker uint64) {
	k.t.Helper()
	want := core.NewOracle()
	k.history.Apply(want, 0)
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		err = fmt.Errorf("there is no space")
		if sp := set.Lookup(pathSpace); sp != nil {
			if err = CompareSpace(sp, shard.RankID{Worker: worker, DPRank: k.pub.Rank}, want, 0); err == nil {
				return
			}
		}
	}
	k.t.Fatalf("%s: %v", k.name, err)
}

// TestDirect follows each release's publisher as kvindexer does; the publisher
// is killed in the middle.
func TestDirect(t *testing.T) {
	h := Open(t)
	for _, r := range Releases() {
		t.Run(r.Name, func(t *testing.T) {
			h.Fetch(t, r)
			set := shard.New(shard.Config{})
			defer set.Close()
			d, err := direct.New(direct.Config{Index: func(id event.Space) (ingest.Applier, error) { return set.Open(id) }})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			k := &rank{t: t, name: r.Name, harness: h, seed: 1, pub: Publisher{Release: r, Rank: 2, Drop: drops(1, 1000)}}
			k.start()
			key := direct.Key{Space: pathSpace, Worker: 7}
			if err := d.Follow(key, map[uint32]direct.Endpoint{2: {Events: k.process.RankEndpoint, Replay: k.process.RankReplay}}); err != nil {
				t.Fatal(err)
			}
			k.publish(1000)
			k.agree(set, 7)
			k.process.Kill()
			k.seed++
			k.pub.Drop = nil
			k.start()
			k.publish(300)
			k.agree(set, 7)
			if s := d.Ranks(key)[2]; s.Incomplete || s.Gaps > 0 || s.Restarts != 1 || s.UnknownParents > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestThroughKvpublisher brings each release's events through the real
// kvpublisher, killed in the middle, and NATS into an index.
func TestThroughKvpublisher(t *testing.T) {
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
	defer b.Close()
	set := shard.New(shard.Config{})
	defer set.Close()
	in, err := ingest.Open(t.Context(), ingest.Config{Conn: b.Conn(), Replica: "test", Discover: 50 * time.Millisecond,
		Index: func(id event.Space) (ingest.Applier, error) { return set.Open(id) }})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for i, r := range Releases() {
		t.Run(r.Name, func(t *testing.T) {
			h.Fetch(t, r)
			k := &rank{t: t, name: r.Name, harness: h, seed: 1, pub: Publisher{Release: r, Rank: 1, Drop: drops(1, 1000)}}
			k.start()
			worker := uint64(100 + i)
			run := func() (kill func()) {
				cmd := exec.Command(bin, "--data-dir", dir, "--admin-listen=", fmt.Sprint("--worker=", worker), "--model=m",
					fmt.Sprint("--block-size=", BlockSize), "--dp-ranks=1", "--engine", k.pub.Endpoint, "--engine-replay", k.pub.Replay,
					"--state-every=100ms", "--log-level=warn")
				cmd.Stderr, cmd.Env = os.Stderr, []string{"HOME=/nonexistent"}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				return func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
			}
			kill := run()
			k.publish(1000)
			<-time.After(300 * time.Millisecond) // somewhere in the middle
			kill()
			k.publish(200)
			kill = run()
			defer func() { kill() }()
			k.agree(set, worker)
			k.process.Kill()
			k.seed++
			k.pub.Drop = nil
			k.start()
			k.publish(300)
			k.agree(set, worker)
			for _, s := range in.Ranks() {
				if s.Worker == worker && (s.Gaps > 0 || s.UnknownParents > 0) {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}
