package e2e

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/replica"
)

// Of a fleet that four kvindexers have a share of each, a kvindexer, a kvrouter and the
// library that ask these know what the oracle knows. When one share is killed they go on,
// and know what they do not know; when another one has its place they know all again.
func TestProgramsThatAskSharesHaveTheOraclesAnswers(t *testing.T) {
	const of = 4
	home := t.TempDir()
	f := newOne(t, home, of)
	f.publish(50, streamed, leaving, shrinking) // so that the streams are there
	var urls []string
	var shares []indexer
	share := func(i int, flags ...string) indexer {
		return startIndexer(t, home, append([]string{fmt.Sprintf("--share=%d/%d", i, of), "--discover-every=50ms"}, flags...)...)
	}
	for i := range of {
		shares = append(shares, share(i))
		urls = append(urls, shares[i].url)
	}
	flags := []string{"--shares=" + strings.Join(urls, ","), "--shares-timeout=5s", "--shares-every=50ms"}
	router := &routerCopy{home: home, flags: flags}
	library := &libraryCopy{replica: replica.Config{
		NATS: replica.NATS{URL: replica.Embedded, DataDir: filepath.Join(home, "data")}, Log: slog.New(slog.DiscardHandler),
	}}
	library.replica.Shares.URLs, library.replica.Shares.Wait, library.replica.Shares.Every = urls, 5*time.Second, 50*time.Millisecond
	copies := map[string]copyOfIndex{"kvindexer": &indexerCopy{home: home, flags: flags}, "kvrouter": router, "the library": library}
	for _, c := range copies {
		c.start(t)
	}
	f.engine.Publish(30)
	f.publish(150, streamed, live, leaving, shrinking)
	f.agreeOnDepths("with all shares", copies)

	gone := stream.Partition(streamed, of)
	away := func(is bool) func() error {
		return func() error {
			body, err := json.Marshal(map[string]any{"model": f.space.Model, "hashes": f.chains[0]})
			if err != nil {
				return err
			}
			for _, path := range []string{"find_matches", "explain"} {
				var a struct{ Missing *struct{ Workers []string } }
				if status, err := post(t.Context(), router.admin+"/v1/"+path, body, &a); err != nil || status != http.StatusOK || (a.Missing != nil) != is {
					return fmt.Errorf("%s: status %d, missing %v: %w", path, status, a.Missing, err)
				}
				for id := uint64(streamed); is && id <= named; id++ {
					if in := strings.Contains(fmt.Sprint(a.Missing.Workers), strconv.FormatUint(id, 10)); in != (stream.Partition(id, of) == gone) {
						return fmt.Errorf("%s: worker %d among the missing: %v", path, id, in)
					}
				}
			}
			body, err = json.Marshal(map[string]any{"model_name": f.space.Model, "block_hashes": f.chains[0], "explain": true})
			if err != nil {
				return err
			}
			var chosen struct {
				Explain []struct {
					Worker  uint64 `json:"worker_id"`
					Unknown bool
				}
			}
			if status, err := post(t.Context(), router.public+"/v1/select", body, &chosen); err != nil || status != http.StatusOK || len(chosen.Explain) != len(f.ranks) {
				return fmt.Errorf("a choice: status %d, %d ranks: %w", status, len(chosen.Explain), err)
			}
			for _, k := range chosen.Explain {
				if k.Unknown != (is && stream.Partition(k.Worker, of) == gone) {
					return fmt.Errorf("worker %d is unknown: %v", k.Worker, k.Unknown)
				}
			}
			ready, err := get(t.Context(), router.admin+"/readyz?verbose")
			if err != nil || strings.Contains(string(ready), fmt.Sprintf("share %d/%d", gone, of)) != is {
				return fmt.Errorf("readiness: %s %w", ready, err)
			}
			return nil
		}
	}
	f.until("with all", "kvrouter", away(false))
	shares[gone].kill()
	f.until("without a share", "kvrouter", away(true))
	f.publish(50, streamed, live, leaving, shrinking) // what it misses meanwhile
	shares[gone] = share(gone, "--http-listen="+strings.TrimPrefix(urls[gone], "http://"))
	f.until("with the share again", "kvrouter", away(false))
	f.agreeOnDepths("with the share again", copies)
	text, err := get(t.Context(), router.admin+"/metrics")
	if err != nil || sum(text, "kvatlas_shares_missing_total", fmt.Sprintf(`share="%d/%d"`, gone, of)) == 0 {
		t.Errorf("what was missing is not counted: %v", err)
	}
	for _, c := range copies {
		c.stop(t)
	}
	for _, s := range shares {
		s.stop()
	}
}

// Programs that read all streams of a space have a position and snapshots of each: they know
// what the oracle knows after an end in order and with one stream purged meanwhile, and after
// kill -9 with one stream trimmed up to its snapshot.
func TestProgramsThatReadAllStreamsHaveTheOraclesAnswers(t *testing.T) {
	const of = 2
	home := t.TempDir()
	f := newOne(t, home, of)
	js, err := jetstream.New(f.broker.Conn())
	if err != nil {
		t.Fatal(err)
	}
	copies := newCopies(home, 1<<30)
	start := func() {
		for _, c := range copies {
			c.start(t)
		}
	}
	publish := func(n int) {
		f.engine.Publish(30)
		f.publish(n, streamed, live, leaving, shrinking)
	}
	purge := func(worker uint64, opts ...jetstream.StreamPurgeOpt) {
		infos, err := stream.List(t.Context(), js, "default")
		if err != nil || len(infos) != of {
			t.Fatalf("%d streams: %v", len(infos), err)
		}
		for _, info := range infos {
			if info.Partition != stream.Partition(worker, of) {
				continue
			}
			s, err := js.Stream(t.Context(), info.Name)
			if err == nil {
				err = s.Purge(t.Context(), opts...)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(50)
	start()
	publish(150)
	f.agreeOnDepths("with all streams", copies)
	for _, c := range copies {
		c.stop(t) // with a snapshot of each stream
	}
	infos, err := stream.List(t.Context(), js, "default")
	if err != nil {
		t.Fatal(err)
	}
	publish(50)
	purge(streamed)
	start()
	publish(50) // what an idle publisher holds is not known: here they are without heartbeats
	f.agreeOnDepths("started again, with one stream purged", copies)
	publish(50)
	in := copies["kvindexer"].(*indexerCopy)
	in.in.kill()
	publish(50)
	for _, info := range infos {
		if info.Partition == stream.Partition(leaving, of) && info.LastSeq > 1 {
			purge(leaving, jetstream.WithPurgeSequence(info.LastSeq)) // its snapshot has that
		}
	}
	in.start(t)
	f.agreeOnDepths("after kill -9, with one stream trimmed", copies)
	text, err := get(t.Context(), in.url()+"/metrics")
	if loaded := sum(text, "kvatlas_snapshot_restores_total", `result="loaded"`); err != nil || loaded < 1 {
		t.Errorf("no snapshot was loaded: %v", err)
	}
	for _, c := range copies {
		c.stop(t)
	}
}
