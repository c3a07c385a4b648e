package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// missingOf reads what an answer says is missing.
func missingOf(data string) (shares, workers []string, err error) {
	var a struct {
		Missing struct {
			Shares  []struct{ Share string }
			Workers []string
		}
	}
	err = json.Unmarshal([]byte(data), &a)
	for _, s := range a.Missing.Shares {
		shares = append(shares, s.Share)
	}
	return shares, a.Missing.Workers, err
}

// Four indexers that have a share each answer together as one that has all; of one
// that is killed the answer says whose blocks are unknown, and that goes on until
// another has caught up with its stream.
func TestSharesAnswerTogetherAsOne(t *testing.T) {
	const of = 4
	dir := t.TempDir()
	alone := []string{"--data-dir", dir, "--registry-beat=50ms", "--discover-every=50ms"}
	urls := make([]string, of)
	shares := make([]*process, of)
	// The first runs the server, and is a share of no stream yet.
	for i := range shares {
		shares[i] = start(t, slices.Concat(alone, []string{"--share", fmt.Sprintf("%d/%d", i, of), "--snapshot-dir", t.TempDir()})...)
		shares[i].ready()
		urls[i] = shares[i].url
	}
	front := start(t, slices.Concat(alone, []string{"--shares", strings.Join(urls, ","), "--shares-timeout=2s"})...)
	front.ready()
	f := newFleet(t, join(t, dir), func(c *publish.Config) {
		c.Stream.Partitions = of
		c.Registration = &publish.Registration{Worker: registry.Worker{Ranks: []uint32{0, 1}}}
	})
	in := make(map[int][]string) // share to its workers
	for w := range fleetWorkers {
		id := uint64(w) + 1<<63
		part := stream.Partition(id, of)
		in[part] = append(in[part], strconv.FormatUint(id, 10))
	}
	if len(in) < 2 {
		t.Fatalf("all workers are of one share: %v", in)
	}
	f.publish(400)
	f.compare(front)
	_, data, err := front.ask("GET", "/v1/workers", "")
	if err != nil || strings.Count(data, `"worker_id"`) != fleetWorkers || strings.Contains(data, `"missing"`) {
		t.Errorf("%s: %v", data, err)
	}

	// Not the first: it runs the server.
	gone := 1
	for len(in[gone]) == 0 {
		gone++
	}
	ask := fmt.Sprintf(`{"model":"org/model","hashes":[%d]}`, f.chains[0][0])
	missing := func() error {
		status, data, err := front.ask("POST", "/v1/find_matches", ask)
		if err != nil || status != 200 {
			return fmt.Errorf("status %d, %w: %s", status, err, data)
		}
		parts, workers, err := missingOf(data)
		if want := []string{fmt.Sprintf("%d/%d", gone, of)}; err != nil || !slices.Equal(parts, want) || !slices.Equal(workers, in[gone]) {
			return fmt.Errorf("missing %v, workers %v, want %v and %v: %w", parts, workers, want, in[gone], err)
		}
		return nil
	}
	shares[gone].hold()
	if err := missing(); err != nil { // at once: the deadline is the front's
		t.Error(err)
	}
	shares[gone].resume()
	f.compare(front)
	_ = shares[gone].cmd.Process.Kill()
	shares[gone].wait()
	waittest.Until(t, missing)
	front.answers("POST", "/v1/find_matches/batch", `{"requests":[]}`, 501, "shares")

	f.publish(200) // what it misses meanwhile
	port := strings.TrimPrefix(urls[gone], "http://")
	again := start(t, slices.Concat(alone, []string{"--share", fmt.Sprintf("%d/%d", gone, of), "--no-snapshots", "--http-listen", port})...)
	waittest.Until(t, func() error { // until it has caught up it is missing, never one that has nothing
		status, data, err := front.ask("POST", "/v1/find_matches", ask)
		parts, _, err2 := missingOf(data)
		ready, _, err3 := again.ask("GET", "/readyz", "")
		if err != nil || err2 != nil || err3 != nil || status != 200 || ready != 200 || len(parts) > 0 {
			return fmt.Errorf("status %d, missing %v, ready %d: %w, %w, %w", status, parts, ready, err, err2, err3)
		}
		return nil
	})
	f.compare(front)

	// Who has a share of another division refuses instead of knowing a part.
	p := start(t, slices.Concat(alone, []string{"--share", "0/2"})...)
	p.answers("GET", "/readyz?verbose", "", 200, "4 streams")
	p.answers("POST", "/v1/find_matches", ask, 404, "unknown_model")
	p.signal(syscall.SIGTERM)
	p.wait()
	for _, pub := range f.pubs { // while the server is there
		if err := pub.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
