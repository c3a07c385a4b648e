package query

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
)

// Shares are the indexers of a fleet that is divided among several, each with a part
// of every space's workers. A Server with them asks all of them at once, and its
// answer is the union: a worker is in one share. Of shares that do not answer in
// time the answer says which workers are unknown.
type Shares struct {
	URLs []string // of the shares' indexers, 0/n first
	Wait time.Duration
}

// Declare adds the settings to the set.
func (c *Shares) Declare(set *conf.Set) {
	set.Group("Shares")
	set.List(&c.URLs, "shares", nil, `Addresses of the indexers that have the shares of the fleet, http://host:port of 0/n
		first: find_matches is asked of all of them, and answered with the union. This program reads no events then.`)
	set.Duration(&c.Wait, "shares-timeout", 250*time.Millisecond, `How long a share may take to answer. The workers of one that takes
		longer are named as unknown.`, conf.Between(time.Millisecond, time.Minute))
	set.Check(func() error {
		for _, text := range c.URLs {
			if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				return fmt.Errorf("--shares: %q is no address such as http://10.0.0.7:8090", text)
			}
		}
		if len(c.URLs) > stream.MaxPartitions {
			return fmt.Errorf("--shares: %d addresses, at most %d", len(c.URLs), stream.MaxPartitions)
		}
		return nil
	})
}

// headerShare is the header by which a share says which one it is: a part of the fleet must
// not be taken for another one, or for all of it.
const headerShare = "Kvatlas-Share"

// maxShareTries bounds how often a share is asked at once: a share that was started again
// has closed the connections that are kept to it.
const maxShareTries = 16

// shares asks the indexers of all shares.
type shares struct {
	cfg    Shares
	client *fasthttp.Client
}

// maxShareAnswer bounds the answer of one share, in bytes.
const maxShareAnswer = 256 << 20

func newShares(cfg Shares) *shares {
	if len(cfg.URLs) == 0 {
		return nil
	}
	return &shares{cfg: cfg, client: &fasthttp.Client{
		Name: "kvatlas", MaxResponseBodySize: maxShareAnswer, NoDefaultUserAgentHeader: true, MaxConnsPerHost: 1 << 10,
		MaxIdemponentCallAttempts: maxShareTries,
		RetryIfErr:                func(*fasthttp.Request, int, error) (bool, bool) { return false, true }, // it only asks
	}}
}

// The answers of find_matches and of GET /v1/workers, as far as the union needs them.
type (
	sharedAnswer struct {
		Model  string        `json:"model,omitempty"`
		Spaces []sharedSpace `json:"spaces"`
	}
	sharedSpace struct {
		Model     string            `json:"model,omitempty"`
		Group     string            `json:"group"`
		BlockSize uint32            `json:"block_size"`
		Blocks    *uint64           `json:"blocks,omitempty"`
		Workers   []json.RawMessage `json:"workers"`
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

// reply is what one share says.
type reply struct {
	status int
	body   []byte
	kind   string
	err    error
}

var errNoAnswer = errors.New("its answer is none to such a question")

// nobody reports whether the share says that nobody of it has published such blocks.
func (r *reply) nobody() bool {
	var refusal struct{ Error struct{ Reason string } }
	if json.Unmarshal(r.body, &refusal) != nil {
		return false
	}
	return slices.Contains([]string{edge.UnknownModel, edge.UnknownGroup, edge.BlockSize}, refusal.Error.Reason)
}

// answer asks all shares what the caller asks, and answers with the union.
func (x *shares) answer(s *Server, ctx *fasthttp.RequestCtx, v *view) *edge.Problem {
	if isBinary(ctx.Request.Header.ContentType()) && !bytes.Contains(ctx.Request.Header.Peek("Accept"), []byte("json")) ||
		wantsBinary(ctx, false) {
		return edge.Refuse(fasthttp.StatusNotAcceptable, "Accept", edge.MediaType,
			"what shares know together is answered as JSON: the binary form cannot say what is missing")
	}
	replies := x.ask(ctx)
	var all unionAnswer
	var none *reply                 // of a share of which nobody has published such blocks
	refused := make(map[int]*reply) // the request is wrong, by these
	answered := 0
	for i := range replies {
		r := &replies[i]
		switch {
		case r.err != nil || r.status >= fasthttp.StatusInternalServerError || r.status == fasthttp.StatusTooManyRequests || r.status < fasthttp.StatusOK:
			all.miss(x.part(i), r)
		case r.status == fasthttp.StatusOK:
			var part sharedAnswer
			if r.err = json.Unmarshal(r.body, &part); r.err == nil && part.Spaces == nil {
				r.err = errNoAnswer
			}
			if r.err != nil {
				all.miss(x.part(i), r)
				continue
			}
			answered++
			all.add(&part)
		case r.nobody():
			none = cmp.Or(none, r)
		default:
			refused[i] = r
		}
	}
	for i := range replies { // where others take the request, it is not the request
		switch r := refused[i]; {
		case r == nil:
		case answered == 0 && none == nil:
			return x.pass(ctx, r)
		default:
			all.miss(x.part(i), r)
		}
	}
	switch {
	case answered == 0 && all.Missing == nil:
		return x.pass(ctx, none)
	case len(replies) == all.missed():
		ctx.Response.Header.Set("Retry-After", "1")
		return edge.Refuse(fasthttp.StatusServiceUnavailable, "shares", edge.NotReady, "no share answers: "+all.Missing.Shares[0].Reason)
	}
	if all.Missing != nil {
		if all.Model == "" { // of those that answered nobody has published such blocks
			var asked struct{ Model string }
			_ = json.Unmarshal(ctx.Request.Body(), &asked) // what is no request is refused by a share
			all.Model = asked.Model
		}
		all.Missing.Workers = x.workersOf(v, all.Missing, cmp.Or(all.Model, string(ctx.QueryArgs().Peek("model"))))
		s.obs.missing.Add(all.missed())
	}
	if all.Spaces == nil {
		all.Spaces = []sharedSpace{}
	}
	body, err := json.Marshal(&all)
	if err != nil {
		return edge.Refuse(fasthttp.StatusBadGateway, "shares", edge.Internal, "the shares' answers make no sense: "+err.Error())
	}
	s.json(ctx, append(append(s.buffer(ctx), body...), '\n'))
	return nil
}

// part returns the share that the i-th address is of.
func (x *shares) part(i int) stream.Share { return stream.Share{Index: i, Of: len(x.cfg.URLs)} }

// ask asks all shares at once.
func (x *shares) ask(ctx *fasthttp.RequestCtx) []reply {
	replies := make([]reply, len(x.cfg.URLs))
	deadline := time.Now().Add(x.cfg.Wait)
	var asking sync.WaitGroup
	for i, base := range x.cfg.URLs {
		asking.Go(func() {
			req, answer := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			defer fasthttp.ReleaseRequest(req)
			defer fasthttp.ReleaseResponse(answer)
			ctx.Request.CopyTo(req)
			if ctx.IsHead() {
				req.Header.SetMethod(fasthttp.MethodGet)
			}
			req.SetRequestURI(strings.TrimSuffix(base, "/") + string(ctx.RequestURI()))
			req.Header.Set("Accept", edge.TypeJSON)
			req.Header.SetNoDefaultContentType(true) // none means JSON to a share, as it does here
			req.Header.Del("Accept-Encoding")
			if err := x.client.DoDeadline(req, answer, deadline); err != nil {
				replies[i].err = err
				return
			}
			share := x.part(i).String()
			if is := string(answer.Header.Peek(headerShare)); is != share {
				replies[i].err = fmt.Errorf("status %d of what is share %q and not %s: give --shares in the order of --share", answer.StatusCode(), is, share)
				return
			}
			replies[i] = reply{status: answer.StatusCode(), body: slices.Clone(answer.Body()), kind: string(answer.Header.ContentType())}
		})
	}
	asking.Wait()
	return replies
}

// pass passes on what a share answered.
func (x *shares) pass(ctx *fasthttp.RequestCtx, r *reply) *edge.Problem {
	ctx.SetStatusCode(r.status)
	ctx.SetContentType(r.kind)
	ctx.SetBody(r.body)
	return nil
}

func (a *unionAnswer) missed() int {
	if a.Missing == nil {
		return 0
	}
	return len(a.Missing.Shares)
}

// miss notes that a share has not answered.
func (a *unionAnswer) miss(part stream.Share, r *reply) {
	why := "it answers " + strconv.Itoa(r.status)
	if r.err != nil {
		why = r.err.Error()
	}
	if a.Missing == nil {
		a.Missing = &missing{Workers: []string{}}
	}
	a.Missing.Shares = append(a.Missing.Shares, missingShare{part.String(), why, part})
}

// add adds what a share knows: its spaces, and its workers in those that others have too.
func (a *unionAnswer) add(part *sharedAnswer) {
	a.Model = cmp.Or(a.Model, part.Model)
	for _, sp := range part.Spaces {
		i := slices.IndexFunc(a.Spaces, func(o sharedSpace) bool {
			return o.Model == sp.Model && o.Group == sp.Group && o.BlockSize == sp.BlockSize
		})
		if i < 0 {
			a.Spaces = append(a.Spaces, sp)
			continue
		}
		a.Spaces[i].Workers = append(a.Spaces[i].Workers, sp.Workers...)
	}
	slices.SortFunc(a.Spaces, func(x, y sharedSpace) int {
		return cmp.Or(cmp.Compare(x.Model, y.Model), cmp.Compare(x.BlockSize, y.BlockSize), cmp.Compare(x.Group, y.Group))
	})
}

// workersOf returns the registered workers of the missing shares, of the model that is
// asked about; "" is all.
func (x *shares) workersOf(v *view, m *missing, model string) []string {
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
// nobody held it.
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
	return edge.Refuse(fasthttp.StatusServiceUnavailable, "request", edge.NotReady, "this share of the fleet is not known yet: "+g.why)
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
