package shares

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/shard"
)

// This file is the union as an index of this process: what routers look prompts up in.

// Space is one index space of all shares.
type Space struct {
	shares *Shares
	uri    string
}

// Space returns the index space.
func (s *Shares) Space(sp event.Space) *Space {
	q := url.Values{"model": {sp.Model}, "group": {sp.Group}, "block_size": {strconv.FormatUint(uint64(sp.BlockSize), 10)}}
	return &Space{s, "/v1/find_matches?" + q.Encode()}
}

const binaryForm = "application/octet-stream"

// Find calls each for every rank that holds the first of the prompt's blocks, with its
// depths, cumulative over tiers. unknown reports whether a worker is of a share that did
// not answer; nil: all have. It returns when ctx or Config.Wait ends at the latest.
func (x *Space) Find(ctx context.Context, local []uint64, each func(id shard.RankID, depth [event.NumTiers]uint32)) (unknown func(worker uint64) bool) {
	if len(local) == 0 {
		return nil // there is nothing to ask for
	}
	body := make([]byte, 0, 8*len(local))
	for _, h := range local {
		body = binary.LittleEndian.AppendUint64(body, h)
	}
	found := make([]client.Matches, len(x.shares.list))
	replies := x.shares.Ask(ctx, x.uri, func(req *fasthttp.Request) {
		x.shares.AsOwn(req)
		spans.Inject(ctx, &req.Header)
		req.Header.SetMethod(fasthttp.MethodPost)
		req.Header.SetContentType(binaryForm)
		req.SetBodyRaw(body)
	}, func(i int, r *Reply) error { return found[i].UnmarshalBinary(r.Body) })
	var missing []stream.Share
	for i := range replies {
		r := &replies[i]
		if r.Err == nil && r.Status != fasthttp.StatusOK && !r.Nobody() {
			r.Miss(Refused, fmt.Errorf("it answers %d: %.200s", r.Status, r.Body))
		}
		if r.Err != nil {
			missing = append(missing, r.Share)
			continue
		}
		for _, sp := range found[i].Spaces {
			for _, k := range sp.Ranks {
				each(shard.RankID{Worker: k.Worker, DPRank: k.DPRank},
					[event.NumTiers]uint32{uint32(k.Device), uint32(k.HostPinned), uint32(k.Disk), uint32(k.External)})
			}
		}
	}
	if missing == nil {
		return nil
	}
	return func(worker uint64) bool {
		return slices.ContainsFunc(missing, func(p stream.Share) bool { return p.Has(worker) })
	}
}

// AsOwn gives a request this program's token.
func (s *Shares) AsOwn(req *fasthttp.Request) {
	if token := s.token.Load(); token != nil {
		req.Header.Set("Authorization", "Bearer "+*token)
	}
}

// known is what the shares last said that each rank holds in all. It does not change.
type known struct {
	held  map[event.Space]map[shard.RankID]int
	stale map[event.Space]map[shard.RankID]bool
	away  map[int]error // shares
}

// Held returns how many blocks each rank holds, as the shares said when they last did.
// The caller must not change it.
func (s *Shares) Held() map[event.Space]map[shard.RankID]int { return s.known.Load().held }

// Stale returns the ranks of which their share lacks events, as Held does. The caller
// must not change it.
func (s *Shares) Stale() map[event.Space]map[shard.RankID]bool { return s.known.Load().stale }

// Away says which shares do not answer, and why; "" if all do.
func (s *Shares) Away() string {
	var texts []string
	now := s.known.Load()
	for i, one := range s.list {
		if err := now.away[i]; err != nil {
			texts = append(texts, fmt.Sprintf("share %s at %s: %v", one.part, one.base, err))
		}
	}
	return strings.Join(texts, "; ")
}

// Follow asks the shares what their ranks hold in all, and goes on with that until Close.
func (s *Shares) Follow(ctx context.Context) {
	s.look(ctx)
	run, cancel := context.WithCancel(context.Background())
	s.cancel, s.done = cancel, make(chan struct{})
	go func() {
		defer close(s.done)
		tick := time.NewTicker(s.cfg.Every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.look(run)
			case <-run.Done():
				return
			}
		}
	}()
}

// Close ends what Follow began, and the connections that nobody uses.
func (s *Shares) Close() {
	if s.cancel != nil {
		s.cancel()
		<-s.done
	}
	s.client.CloseIdleConnections()
}

// ranksAnswer is the answer of GET /v1/ranks.
type ranksAnswer struct {
	Spaces []struct {
		Model     string
		Group     string
		BlockSize uint32 `json:"block_size"`
		Ranks     []struct {
			Worker uint64 `json:"worker_id,string"`
			DPRank uint32 `json:"dp_rank"`
			Blocks int
			Stale  bool
		}
	}
}

// look asks what each rank holds in all, and whether that is stale. What a share that
// does not answer said before stays: that a rank held nothing would make it the first
// choice among equals. Whose depths are unknown each lookup says.
func (s *Shares) look(ctx context.Context) {
	if s.cfg.Token != "" {
		data, err := os.ReadFile(s.cfg.Token)
		if err != nil {
			s.log.Error("the token for shares cannot be read", "error", err)
		}
		if token := strings.TrimSpace(string(data)); token != "" { // else it is being written: the last one stays
			s.token.Store(&token)
		}
	}
	was, now := s.known.Load(), &known{
		held: make(map[event.Space]map[shard.RankID]int), stale: make(map[event.Space]map[shard.RankID]bool), away: make(map[int]error),
	}
	answers := make([]ranksAnswer, len(s.list))
	replies := s.Ask(ctx, "/v1/ranks", s.AsOwn, func(i int, r *Reply) error { return json.Unmarshal(r.Body, &answers[i]) })
	if ctx.Err() != nil {
		return
	}
	for i := range replies {
		r := &replies[i]
		if r.Err == nil && r.Status != fasthttp.StatusOK {
			r.Miss(Refused, fmt.Errorf("it answers %d: %.200s", r.Status, r.Body))
		}
		if r.Err != nil {
			now.keep(was, r.Share)
			now.away[i] = r.Err
		}
		for _, sp := range answers[i].Spaces {
			space := event.Space{Model: sp.Model, Group: sp.Group, BlockSize: sp.BlockSize}
			for _, k := range sp.Ranks {
				now.note(space, shard.RankID{Worker: k.Worker, DPRank: k.DPRank}, k.Blocks, k.Stale)
			}
		}
		switch before := was.away[i]; {
		case r.Err != nil && before == nil:
			s.log.Warn("a share does not answer: what its workers hold is unknown", "share", r.Share, "address", r.share.base, "error", r.Err)
		case r.Err == nil && before != nil:
			s.log.Info("a share answers again", "share", r.Share, "address", r.share.base)
		}
	}
	s.known.Store(now)
}

func (k *known) note(sp event.Space, id shard.RankID, held int, stale bool) {
	if k.held[sp] == nil {
		k.held[sp], k.stale[sp] = make(map[shard.RankID]int), make(map[shard.RankID]bool)
	}
	k.held[sp][id] = held
	if stale {
		k.stale[sp][id] = true
	}
}

// keep keeps what was known of a share's ranks.
func (k *known) keep(was *known, part stream.Share) {
	for sp, ranks := range was.held {
		for id, held := range ranks {
			if part.Has(id.Worker) {
				k.note(sp, id, held, was.stale[sp][id])
			}
		}
	}
}
