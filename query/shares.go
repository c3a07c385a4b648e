package query

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/shares"
	"github.com/kvatlas/kvatlas/registry"
)

// This file is what a Server answers of a fleet that is divided among several indexers: of
// a share, or, with all of them to ask, with what they know together.

// The answers of find_matches, of explain and of GET /v1/workers, as far as the union
// needs them.
type (
	sharedAnswer struct {
		Model  string            `json:"model,omitempty"`
		Asked  json.RawMessage   `json:"asked,omitempty"`
		Spaces []sharedSpace     `json:"spaces"`
		Others []json.RawMessage `json:"other_spaces,omitzero"`
	}
	sharedSpace struct {
		Model     string            `json:"model,omitempty"`
		Group     string            `json:"group"`
		BlockSize uint32            `json:"block_size"`
		Blocks    *uint64           `json:"blocks,omitempty"`
		LeftOver  *uint64           `json:"tokens_left_over,omitempty"`
		Longest   *uint64           `json:"longest,omitempty"`
		Estimated bool              `json:"estimated,omitempty"`
		Pools     []sharedPool      `json:"pools,omitempty"`
		Workers   []json.RawMessage `json:"workers,omitzero"`
		Ranks     []json.RawMessage `json:"ranks,omitzero"`
	}
	// sharedPool has its depth in lookups; else what it holds, and how many workers name it.
	sharedPool struct {
		Name     string  `json:"pool"`
		External *uint64 `json:"external,omitempty"`
		Blocks   *uint64 `json:"blocks,omitempty"`
		Workers  *uint64 `json:"workers,omitempty"`
	}
	// unionAnswer is the union with what is missing.
	unionAnswer struct {
		sharedAnswer
		Missing *missing `json:"missing,omitempty"`
	}
	// missing says which shares did not answer, why, and who is in them.
	missing struct {
		Shares  []missingShare `json:"shares"`
		Workers []string       `json:"workers"` // ids of those that are registered
	}
	missingShare struct {
		Share  string `json:"share"`
		Reason string `json:"reason"`
		part   stream.Share
	}
)

// answerUnion asks all shares what the caller asks, and answers with the union.
func (s *Server) answerUnion(ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	if isBinary(ctx.Request.Header.ContentType()) && !bytes.Contains(ctx.Request.Header.Peek("Accept"), []byte("json")) ||
		wantsBinary(ctx, false) {
		return edge.Refuse(fasthttp.StatusNotAcceptable, "Accept", edge.MediaType,
			"what shares know together is answered as JSON: the binary form cannot say what is missing")
	}
	all, as, no := s.askShares(v, string(ctx.RequestURI()), string(ctx.Path()) == pathExplain, string(ctx.QueryArgs().Peek("model")), func() string {
		var asked struct{ Model string }
		_ = json.Unmarshal(ctx.Request.Body(), &asked) // what is no request is refused by a share
		return asked.Model
	}, func(req *fasthttp.Request) {
		ctx.Request.CopyTo(req)
		if ctx.IsHead() {
			req.Header.SetMethod(fasthttp.MethodGet)
		}
		req.Header.Set("Accept", edge.TypeJSON)
		req.Header.SetNoDefaultContentType(true) // none means JSON to a share, as it does here
		req.Header.Del("Accept-Encoding")
	})
	switch {
	case no != nil:
		if no.Status == fasthttp.StatusServiceUnavailable {
			ctx.Response.Header.Set("Retry-After", "1")
		}
		return no
	case as != nil:
		ctx.SetStatusCode(as.Status)
		ctx.SetContentType(as.Kind)
		ctx.SetBody(as.Body)
		return nil
	}
	body, err := json.Marshal(all)
	if err != nil {
		return senseless(err)
	}
	s.json(ctx, append(append(s.buffer(ctx), body...), '\n'))
	return nil
}

func senseless(err error) *edge.Problem {
	return edge.Refuse(fasthttp.StatusBadGateway, "shares", edge.Internal, "the shares' answers make no sense: "+err.Error())
}

// askShares asks all shares the same, and returns the union of what they know, or the one
// answer that holds for all. An explanation without any space is none; listed is the only
// model that is listed, model the one that is asked about.
func (s *Server) askShares(v *view, uri string, explain bool, listed string, model func() string, prepare func(req *fasthttp.Request)) (*unionAnswer, *shares.Reply, *edge.Problem) {
	parts := make([]sharedAnswer, stream.MaxPartitions)
	replies := s.deps.Shares.Ask(context.Background(), uri, prepare, func(i int, r *shares.Reply) error {
		err := json.Unmarshal(r.Body, &parts[i])
		if err == nil && parts[i].Spaces == nil {
			err = errors.New("it has no spaces")
		}
		return err
	})
	var all unionAnswer
	var none, refused *shares.Reply // of a share of which nobody has published such blocks; the request is wrong, by this one
	answered := 0
	for i := range replies {
		switch r := &replies[i]; {
		case r.Err != nil:
		case r.Status == fasthttp.StatusOK:
			answered++
			all.add(&parts[i])
		case r.Nobody():
			none = cmp.Or(none, r)
		default:
			refused = cmp.Or(refused, r)
		}
	}
	if refused != nil && answered == 0 && none == nil {
		return nil, refused, nil
	}
	for i := range replies {
		r := &replies[i]
		if r.Err == nil && r.Status != fasthttp.StatusOK && !r.Nobody() { // where others take the request, it is not the request
			r.Miss(shares.Refused, fmt.Errorf("it answers %d", r.Status))
		}
		if r.Err != nil {
			all.miss(r)
		}
	}
	switch {
	case answered == 0 && all.Missing == nil:
		return nil, none, nil
	case len(replies) == all.missed(), answered == 0 && explain:
		return nil, nil, edge.Refuse(fasthttp.StatusServiceUnavailable, "shares", edge.NotReady, "no share answers: "+all.Missing.Shares[0].Reason)
	}
	if all.Missing != nil {
		if all.Model == "" { // of those that answered nobody has published such blocks
			all.Model = model()
		}
		all.Missing.Workers = workersOf(v, all.Missing, cmp.Or(all.Model, listed))
	}
	if all.Spaces == nil {
		all.Spaces = []sharedSpace{}
	}
	return &all, nil, nil
}

func (a *unionAnswer) missed() int {
	if a.Missing == nil {
		return 0
	}
	return len(a.Missing.Shares)
}

// miss notes that a share has not answered.
func (a *unionAnswer) miss(r *shares.Reply) {
	if a.Missing == nil {
		a.Missing = &missing{Workers: []string{}}
	}
	a.Missing.Shares = append(a.Missing.Shares, missingShare{r.Share.String(), r.Err.Error(), r.Share})
}

// add adds what a share knows: its spaces, and its workers in those that others have too.
func (a *unionAnswer) add(part *sharedAnswer) {
	a.Model = cmp.Or(a.Model, part.Model)
	if a.Asked == nil {
		a.Asked = part.Asked
	}
	if part.Others != nil && a.Others == nil {
		a.Others = []json.RawMessage{}
	}
	for _, other := range part.Others {
		if !slices.ContainsFunc(a.Others, func(o json.RawMessage) bool { return bytes.Equal(o, other) }) {
			a.Others = append(a.Others, other)
		}
	}
	for _, sp := range part.Spaces {
		i := slices.IndexFunc(a.Spaces, func(o sharedSpace) bool {
			return o.Model == sp.Model && o.Group == sp.Group && o.BlockSize == sp.BlockSize
		})
		if i < 0 {
			a.Spaces = append(a.Spaces, sp)
			continue
		}
		is := &a.Spaces[i]
		is.Estimated = is.Estimated || sp.Estimated
		is.Pools = deepest(is.Pools, sp.Pools)
		is.Workers, is.Ranks = append(is.Workers, sp.Workers...), append(is.Ranks, sp.Ranks...)
		if is.Longest != nil && sp.Longest != nil && *sp.Longest > *is.Longest {
			is.Longest = sp.Longest
		}
	}
	slices.SortFunc(a.Spaces, func(x, y sharedSpace) int {
		return cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.BlockSize, y.BlockSize), cmp.Compare(x.Group, y.Group))
	})
}

// deepest puts more pools into the list, by name: each with what the share has of it that has most, as
// each is told by its own workers alone, and with all workers that name it.
func deepest(pools, more []sharedPool) []sharedPool {
	for _, p := range more {
		i, there := slices.BinarySearchFunc(pools, p.Name, func(p sharedPool, name string) int { return strings.Compare(p.Name, name) })
		if !there {
			pools = slices.Insert(pools, i, p)
			continue
		}
		is := &pools[i]
		if is.External != nil && p.External != nil {
			*is.External = max(*is.External, *p.External)
		}
		if is.Blocks != nil && is.Workers != nil && p.Blocks != nil && p.Workers != nil {
			*is.Blocks, *is.Workers = max(*is.Blocks, *p.Blocks), *is.Workers+*p.Workers
		}
	}
	return pools
}

// workersOf returns the registered workers of the missing shares, of the model that is
// asked about; "" is all.
func workersOf(v *view, m *missing, model string) []string {
	ids := []string{}
	if v.registry == nil {
		return ids
	}
	for _, e := range v.registry.Snapshot(false) {
		if model != "" && model != e.Model {
			continue
		}
		if slices.ContainsFunc(m.Shares, func(s missingShare) bool { return s.part.Has(e.Key.Worker) }) {
			ids = append(ids, strconv.FormatUint(e.Key.Worker, 10))
		}
	}
	slices.Sort(ids) // one may be in several spaces
	return slices.Compact(ids)
}

// gate asks how far the index is at most ten times a second: requests of a share are
// refused until it has caught up, for what it does not know yet must not look as if
// nobody held it, and those of a replica of whole spaces while one is divided anew.
type gate struct {
	behind func() string // nil: all are answered
	mu     sync.Mutex
	asked  time.Time
	why    string
}

func (g *gate) refuses() *edge.Problem {
	if g.behind == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); now.Sub(g.asked) > 100*time.Millisecond {
		g.asked, g.why = now, g.behind()
	}
	if g.why == "" {
		return nil
	}
	return edge.Refuse(fasthttp.StatusServiceUnavailable, "request", edge.NotReady, "what workers hold is not known: "+g.why)
}

// ofShare is a Registry of a share's workers: others are not said to hold nothing.
type ofShare struct {
	Registry
	share stream.Share
}

// OfShare returns the registry of a share's workers.
func OfShare(r Registry, share stream.Share) Registry {
	if r == nil || share.Of == 0 {
		return r
	}
	return ofShare{r, share}
}

func (r ofShare) Snapshot(departed bool) []registry.Entry {
	return slices.DeleteFunc(r.Registry.Snapshot(departed), func(e registry.Entry) bool { return !r.share.Has(e.Key.Worker) })
}
