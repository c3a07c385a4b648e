package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Verdict says how far the index agrees with the oracle.
type Verdict struct {
	Events        int    `json:"events"`         // fed to the oracle
	StoredBlocks  int    `json:"stored_blocks"`  // that became held there
	EvictedBlocks int    `json:"evicted_blocks"` // that ceased to be held there
	HeldBlocks    int    `json:"held_blocks"`    // at the end
	Ranks         int    `json:"ranks"`          // that published anything
	Prompts       int    `json:"prompts"`        // asked about
	AsTokens      int    `json:"as_tokens"`      // of those, as tokens instead of hashes
	Matches       int    `json:"matches"`        // (prompt, rank) pairs with a depth above 0
	Deepest       int    `json:"deepest"`        // blocks
	Differences   int    `json:"differences"`    // prompts or ranks with an answer other than the oracle's
	First         string `json:"first,omitempty"`
}

// clients is how many requests are under way at once.
const clients = 4

// tokensEvery is how many prompts there are to one that is asked about by its
// tokens, if it is not longer than tokensUpTo: the index hashes it then.
const (
	tokensEvery = 50
	tokensUpTo  = 50_000
)

// judge is the state of one Judge.
type judge struct {
	url    string
	client *http.Client
	space  event.Space
	oracle *core.Oracle
	ranks  []shard.RankID // by holder

	mu      sync.Mutex
	verdict Verdict // Differences and First are guarded by mu
}

// question is a prompt and the depths, by tier and holder, that are right.
type question struct {
	serial uint64
	hashes []uint64
	tokens []uint32 // instead of the hashes, if not empty
	want   [event.NumTiers][]uint32
}

// Judge feeds the oracle with the events recorded in the file and asks the
// index at url about every request of cfg's source. It expects that nothing
// else changes the index meanwhile.
func Judge(ctx context.Context, cfg *mocker.Config, record, url string) (Verdict, error) {
	j := &judge{
		url: url, oracle: core.NewOracle(), client: &http.Client{Timeout: time.Minute},
		space: event.Space{Model: cfg.Model, Group: cfg.Group, BlockSize: uint32(cfg.Engine.BlockSize)},
	}
	if err := j.feed(record); err != nil {
		return j.verdict, err
	}
	if err := j.compareHeld(ctx); err != nil {
		return j.verdict, err
	}
	err := j.comparePrompts(ctx, cfg)
	return j.verdict, err
}

// feed applies the recorded events to the oracle.
func (j *judge) feed(record string) error {
	holders := map[shard.RankID]core.Holder{}
	v := &j.verdict
	err := mocker.ReadRecord(record, func(b *event.Batch) error {
		if b.Space != j.space {
			return fmt.Errorf("an event of space %v is recorded, not of %v", b.Space, j.space)
		}
		ev := &b.Events[0]
		id := shard.RankID{Worker: b.Worker, DPRank: ev.DPRank}
		h, known := holders[id]
		if !known {
			h = core.Holder(len(j.ranks))
			holders[id] = h
			j.ranks = append(j.ranks, id)
		}
		var o core.Outcome
		switch ev.Kind {
		case event.Stored:
			o = j.oracle.Store(h, ev, false)
		case event.Removed:
			o = j.oracle.Remove(h, ev, false)
		case event.Cleared:
			o = j.oracle.Clear(h, ev.Tier, ev.AllTiers)
		}
		if o.UnknownParent+o.UnknownBlock+o.Unknown+o.Duplicate+o.Replaced > 0 {
			return fmt.Errorf("a mock engine's event makes no sense to the oracle: %+v", o)
		}
		v.Events++
		v.StoredBlocks += o.Stored
		v.EvictedBlocks += o.Removed
		return nil
	})
	for h := range j.ranks {
		v.HeldBlocks += j.oracle.Held(core.Holder(h), event.Device)
	}
	v.Ranks = len(j.ranks)
	return err
}

// differ counts an answer that is not the oracle's.
func (j *judge) differ(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.verdict.Differences++; j.verdict.First == "" {
		j.verdict.First = fmt.Sprintf(format, args...)
	}
}

// compareHeld compares how many blocks each rank holds.
func (j *judge) compareHeld(ctx context.Context) error {
	var answer struct {
		Spaces []struct {
			Model, Group string
			BlockSize    uint32 `json:"block_size"`
			Workers      []struct {
				WorkerID string `json:"worker_id"`
				Ranks    []struct {
					DPRank uint32 `json:"dp_rank"`
					depths
				}
			}
		}
	}
	if err := j.call(ctx, http.MethodGet, "/v1/workers?model="+j.space.Model, nil, &answer); err != nil {
		return err
	}
	got := map[shard.RankID]depths{}
	for _, s := range answer.Spaces {
		if (event.Space{Model: s.Model, Group: s.Group, BlockSize: s.BlockSize}) != j.space {
			continue
		}
		for _, w := range s.Workers {
			id, err := strconv.ParseUint(w.WorkerID, 10, 64)
			if err != nil {
				return fmt.Errorf("worker id of /v1/workers: %w", err)
			}
			for _, r := range w.Ranks {
				got[shard.RankID{Worker: id, DPRank: r.DPRank}] = r.depths
			}
		}
	}
	if len(got) != len(j.ranks) {
		j.differ("the index knows %d ranks, the oracle %d", len(got), len(j.ranks))
	}
	for h, id := range j.ranks {
		var want [event.NumTiers]int
		for t := range want {
			want[t] = j.oracle.Held(core.Holder(h), event.Tier(t))
		}
		if d, known := got[id]; !known || d.tiers() != want {
			j.differ("worker %d rank %d: the index holds %v blocks, the oracle %v", id.Worker, id.DPRank, d.tiers(), want)
		}
	}
	return nil
}

// depths is a number for each tier, as answers spell it.
type depths struct {
	Device     int `json:"device"`
	HostPinned int `json:"host_pinned"`
	Disk       int `json:"disk"`
	External   int `json:"external"`
}

func (d depths) tiers() [event.NumTiers]int {
	return [event.NumTiers]int{d.Device, d.HostPinned, d.Disk, d.External}
}

// comparePrompts asks about every prompt. The oracle answers on this goroutine,
// as it must; the index is asked on others.
func (j *judge) comparePrompts(ctx context.Context, cfg *mocker.Config) error {
	src, closer, err := cfg.Open()
	if err != nil {
		return err
	}
	defer closer() //nolint:errcheck // only read
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	questions := make(chan *question, clients)
	var wait sync.WaitGroup
	for range clients {
		wait.Go(func() {
			for q := range questions {
				if err := j.ask(ctx, q); err != nil {
					cancel(err)
				}
			}
		})
	}
	hasher := trace.NewHasher(src.IDTokens(), cfg.Engine.BlockSize)
	var r trace.Request
	for err == nil && ctx.Err() == nil && (cfg.Requests == 0 || j.verdict.Prompts < cfg.Requests) {
		if err = src.Next(&r); err == nil {
			questions <- j.question(hasher, &r)
		}
	}
	close(questions)
	wait.Wait()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return context.Cause(ctx)
}

func (j *judge) question(hasher *trace.Hasher, r *trace.Request) *question {
	q := &question{serial: r.Serial, hashes: hasher.Prompt(nil, r)}
	if r.Serial%tokensEvery == 0 && r.Input <= tokensUpTo {
		q.tokens = hasher.Tokens(nil, r, 0, r.Input)
		j.verdict.AsTokens++
	}
	var m core.Matches
	j.oracle.Find(q.hashes, &m)
	for t := range q.want {
		q.want[t] = make([]uint32, len(j.ranks))
		m.Fill(event.Tier(t), q.want[t])
	}
	j.verdict.Prompts++
	for _, d := range q.want[event.External] {
		if d > 0 {
			j.verdict.Matches++
			j.verdict.Deepest = max(j.verdict.Deepest, int(d))
		}
	}
	return q
}

// matches is the answer of find_matches.
type matches struct {
	Spaces []struct {
		Group     string
		BlockSize uint32 `json:"block_size"`
		Blocks    int
		Workers   []workerMatch
	}
}

type workerMatch struct {
	WorkerID string `json:"worker_id"`
	Longest  int
	Tokens   int
	depths
	Ranks []struct {
		DPRank uint32 `json:"dp_rank"`
		depths
	}
}

// ask asks the index and compares.
func (j *judge) ask(ctx context.Context, q *question) error {
	body := fmt.Appendf(nil, `{"model":%q,"group":%q,"block_size":%d,`, j.space.Model, j.space.Group, j.space.BlockSize)
	if len(q.tokens) > 0 {
		body = appendArray(append(body, `"token_ids":[`...), q.tokens)
	} else {
		body = appendArray(append(body, `"hashes":[`...), q.hashes)
	}
	var answer matches
	if err := j.call(ctx, http.MethodPost, "/v1/find_matches", append(body, '}'), &answer); err != nil {
		return fmt.Errorf("prompt %d: %w", q.serial, err)
	}
	if diff := j.compare(q, &answer); diff != "" {
		j.differ("prompt %d of %d blocks: %s", q.serial, len(q.hashes), diff)
	}
	return nil
}

// appendArray appends the elements and the closing bracket of a JSON array.
func appendArray[T uint32 | uint64](dst []byte, list []T) []byte {
	for i, v := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(v), 10)
	}
	return append(dst, ']')
}

// compare returns the first difference between an answer and what is right.
func (j *judge) compare(q *question, answer *matches) string {
	if len(answer.Spaces) != 1 {
		return fmt.Sprintf("%d spaces answer", len(answer.Spaces))
	}
	s := &answer.Spaces[0]
	if s.Group != j.space.Group || s.BlockSize != j.space.BlockSize || s.Blocks != len(q.hashes) {
		return fmt.Sprintf("answered for group %q, blocks of %d tokens, %d blocks", s.Group, s.BlockSize, s.Blocks)
	}
	got := map[shard.RankID][event.NumTiers]int{}
	for _, w := range s.Workers {
		id, err := strconv.ParseUint(w.WorkerID, 10, 64)
		if err != nil {
			return "worker id " + strconv.Quote(w.WorkerID)
		}
		var best [event.NumTiers]int
		for _, r := range w.Ranks {
			d := r.tiers()
			got[shard.RankID{Worker: id, DPRank: r.DPRank}] = d
			for t := range best {
				best[t] = max(best[t], d[t])
			}
		}
		longest := best[event.External]
		if w.tiers() != best || w.Longest != longest || w.Tokens != longest*int(j.space.BlockSize) {
			return fmt.Sprintf("worker %d is given as %+v, its ranks say %v", id, w.depths, best)
		}
	}
	right := 0
	for h, id := range j.ranks {
		var want [event.NumTiers]int
		for t := range want {
			want[t] = int(q.want[t][h])
		}
		if got[id] != want {
			return fmt.Sprintf("worker %d rank %d: depths %v, the oracle says %v", id.Worker, id.DPRank, got[id], want)
		}
		if slices.Max(want[:]) > 0 {
			right++
		}
	}
	if len(got) != right {
		return fmt.Sprintf("%d ranks are listed, the oracle knows %d", len(got), right)
	}
	return ""
}

// call makes one HTTP request and decodes the JSON answer.
func (j *judge) call(ctx context.Context, method, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, j.url+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask the index: %w", err)
	}
	res, err := j.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask the index: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // read to its end
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", path, res.Status, strings.TrimSpace(string(data)))
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("answer of %s: %w", path, err)
	}
	return nil
}
