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
