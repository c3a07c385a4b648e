package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/selection"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// Responses, files and batches are kept by the engine that has made them, and by no
// other. Which one that is the router remembers of those that went through it; of
// others, which went through another router or before a restart, it asks all engines:
// only one of them can have it.

// keptKinds are what is kept, as paths name it.
var keptKinds = [...]string{"responses", "files", "batches"}

// keptPath returns the kind and the name of what a path is about; no name for all of
// the kind.
func keptPath(path string) (kind, id string) {
	rest, ok := strings.CutPrefix(path, "/v1/")
	if !ok {
		return "", ""
	}
	kind, rest, _ = strings.Cut(rest, "/")
	if !slices.Contains(keptKinds[:], kind) {
		return "", ""
	}
	id, _, _ = strings.Cut(rest, "/")
	return kind, id
}

// keptName reports whether a text of a body may be a name, and not a way to elsewhere in
// a path.
func keptName(id string) bool {
	return len(id) <= 256 && id != "." && id != ".." && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`/\%?#;`, r) })
}

// keptKey tells names apart: clients may choose long ones. They mean something among the
// engines of one space only: another's, of another tenant at that, may have the same.
func keptKey(sp event.Space, kind, id string) xxh3.Uint128 {
	return xxh3.HashString128(sp.Model + "\x00" + sp.Group + "\x00" + strconv.FormatUint(uint64(sp.BlockSize), 10) + "\x00" + kind + "/" + id)
}

// Where something that is kept was found, in metrics.
const (
	keptKnown = "known" // its engine was remembered
	keptAsked = "asked" // all were asked
	keptNot   = "nowhere"
)

// serveKept passes a request about what an engine keeps on to that one.
func (p *Proxy) serveKept(w http.ResponseWriter, r *http.Request) {
	q, done := p.take(w, r)
	if q == nil {
		return
	}
	defer done()
	kind, id := keptPath(r.URL.Path)
	engines := p.keepers(r)
	if name := r.Header.Get(headerModel); name != "" && len(engines) == 0 {
		group := ""
		if tenant := tenantOf(r); tenant != nil {
			group = *tenant
		}
		if m, _ := p.fleet.Lookup(name, group); m == nil {
			p.refuse(w, r, p.notServed(name))
			return
		}
	}
	if len(engines) == 0 {
		p.refuse(w, r, p.unlessUnknown(refuse(http.StatusServiceUnavailable, "no_worker", "no engine with an address is there to ask")))
		return
	}
	if id == "" {
		p.listKept(w, r, q, engines)
		return
	}
	where := keptKnown
	e := p.remembered(kind, id, engines)
	if e == nil {
		get := whoHas(r, kind, id)
		itself := r.Method == http.MethodGet && r.URL.Path == get.URL.Path
		if itself {
			get.URL.RawQuery = r.URL.RawQuery
		}
		a, failed := p.askAll(get, engines)
		switch {
		case a.resp == nil && failed:
			p.refuse(w, r, notAllSay())
			return
		case a.resp == nil:
			p.obs.kept[keptNot].Inc()
			p.refuse(w, r, p.unlessUnknown(refuse(http.StatusNotFound, "not_found", "no engine has "+shorten(id)+" among its "+kind)))
			return
		case a.has():
			y, _ := p.payerOf(r, false)
			p.keptBy(a.engine.Model(), y.name, kind, id, a.engine.ID)
		}
		if itself || !a.has() {
			defer a.cancel()
			p.obs.kept[keptAsked].Inc()
			q.asked(a.engine)
			p.passOn(w, q, a.resp, a.cancel)
			return
		}
		a.drop()
		e, where = a.engine, keptAsked
	}
	p.obs.kept[where].Inc()
	p.askOnly(w, r, q, e)
}

// notAllSay refuses what nobody who answers has.
func notAllSay() *refusal {
	return refuse(http.StatusBadGateway, "engine_unreachable", "nobody who answers has it, and not all engines answer, or were asked in time")
}

// whoHas returns what engines are asked that may have something: to see it, and with no
// body, whatever the client wants to do with it.
func whoHas(r *http.Request, kind, id string) *http.Request {
	get := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/v1/" + kind + "/" + id}, Header: http.Header{}, RemoteAddr: r.RemoteAddr}
	copyHeaders(get.Header, r.Header)
	get.Header.Del("Content-Length")
	get.Header.Del("Content-Type")
	return get.WithContext(r.Context())
}

// keepers returns the engines that may have something for the caller.
func (p *Proxy) keepers(r *http.Request) (engines []*fleet.Engine) {
	tenant, model := tenantOf(r), r.Header.Get(headerModel)
	for _, m := range p.fleet.Models() {
		if tenant != nil && m.Group != *tenant || model != "" && !p.fleet.Named(m, model) {
			continue
		}
		for _, e := range m.Engines() {
			if e.URL != "" {
				engines = append(engines, e)
			}
		}
	}
	return engines
}

// remembered returns the one of the engines that keeps something; nil if that is not
// known, or not for the caller.
func (p *Proxy) remembered(kind, id string, engines []*fleet.Engine) *fleet.Engine {
	var m *fleet.Model
	for _, e := range engines { // those of a model stand together
		if e.Model() == m {
			continue
		}
		m = e.Model()
		worker, ok := p.kept.get(keptKey(m.Space, kind, id), time.Now())
		if !ok {
			continue
		}
		if e := m.Engine(worker); e != nil && slices.Contains(engines, e) {
			return e
		}
	}
	return nil
}

// keptBy notes which worker keeps something, for whom.
func (p *Proxy) keptBy(m *fleet.Model, owner, kind, id string, worker uint64) {
	p.kept.putFor(owner, keptKey(m.Space, kind, id), worker, 1, time.Now())
}

// askOnly answers as the engine does.
func (p *Proxy) askOnly(w http.ResponseWriter, r *http.Request, q *call, e *fleet.Engine) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	q.asked(e)
	late := time.AfterFunc(p.cfg.AskTimeout, cancel)
	resp, err := p.client.RoundTrip(p.toEngine(ctx, r, q.pieces([][]byte{q.data}), e))
	if late.Stop(); err != nil {
		p.limit.Warn("kept", "an engine did not answer for what it keeps", errAttr(err), q.attr(), slog.Uint64("worker", e.ID))
		p.refuse(w, r, refuse(http.StatusBadGateway, "engine_unreachable", "the engine that keeps it did not answer"))
		return
	}
	p.passOn(w, q, resp, cancel)
}

// keptAnswer is an engine's answer; resp is nil without one.
type keptAnswer struct {
	engine *fleet.Engine
	resp   *http.Response
	cancel context.CancelFunc
}

// drop ends an answer, if there is one, that is not read.
func (a *keptAnswer) drop() {
	if a.resp != nil {
		_ = a.resp.Body.Close() // not read
		a.cancel()
	}
}

// absent reports whether an answer says that what it was asked for is not there.
func (a *keptAnswer) absent() bool {
	switch a.resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return false
}

// has reports whether an answer shows that the engine has it.
func (a *keptAnswer) has() bool { return a.resp.StatusCode < 300 }

// says reports whether an answer may be about what was asked for, and not about how the
// engine is or who asks it.
func (a *keptAnswer) says() bool {
	switch a.resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return a.resp.StatusCode < 500 && !a.absent()
}

// mayAsk waits until the request may ask all engines: a client costs each engine a
// request by one, for names that nobody has too, so few ask at once. done must be called.
func (p *Proxy) mayAsk(ctx context.Context) (done func(), ok bool) {
	late := time.NewTimer(p.cfg.AskTimeout)
	defer late.Stop()
	select {
	case p.asking <- struct{}{}:
		return func() { <-p.asking }, true
	case <-late.C:
	case <-ctx.Done():
	}
	return nil, false
}

// askAll asks all engines and returns the answer of the one that has it; failed is set
// if some did not answer, or could not be asked in time.
func (p *Proxy) askAll(get *http.Request, engines []*fleet.Engine) (found keptAnswer, failed bool) {
	done, ok := p.mayAsk(get.Context())
	if !ok {
		return found, true
	}
	defer done()
	answers := make(chan keptAnswer, len(engines))
	room := make(chan struct{}, administered)
	ctx, giveUp := context.WithCancel(get.Context())
	defer giveUp()
	for _, e := range engines {
		go func() { // ends within AskTimeout, and before askAll does
			room <- struct{}{}
			defer func() { <-room }()
			answers <- p.askKeeper(ctx, get, e)
		}()
	}
	for range engines {
		switch a := <-answers; {
		case a.resp == nil:
			failed = true
		case a.says() && (found.resp == nil || a.has() && !found.has()):
			found.drop()
			if found = a; a.has() {
				giveUp()
			}
		default:
			failed = failed || !a.absent()
			a.drop()
		}
	}
	return found, failed
}

// askKeeper asks one of them, unless ctx ends before its answer begins.
func (p *Proxy) askKeeper(ctx context.Context, get *http.Request, e *fleet.Engine) keptAnswer {
	asking, cancel := context.WithCancel(get.Context())
	stop := context.AfterFunc(ctx, cancel)
	late := time.AfterFunc(p.cfg.AskTimeout, cancel)
	resp, err := p.client.RoundTrip(p.toEngine(asking, get, upstream.Payload{}, e)) //nolint:bodyclose // keptAnswer has it, and who asked closes it
	late.Stop()
	stop()
	if err != nil {
		cancel()
		return keptAnswer{}
	}
	return keptAnswer{e, resp, cancel}
}

// maxKeptList bounds what one engine may list, and maxKeptLists all of them, in bytes.
const (
	maxKeptList  = 4 << 20
	maxKeptLists = 16 << 20
)

// listKept answers with what all engines keep of a kind, one list after the other.
func (p *Proxy) listKept(w http.ResponseWriter, r *http.Request, q *call, engines []*fleet.Engine) {
	if no := p.unlessUnknown(nil); no != nil { // the list would not be whole
		p.refuse(w, r, no)
		return
	}
	done, ok := p.mayAsk(r.Context())
	if !ok {
		p.refuse(w, r, refuse(http.StatusBadGateway, "engine_unreachable", "not all engines were asked in time: the list would not be whole"))
		return
	}
	defer done()
	slices.SortFunc(engines, byID)
	lists := make([]keptList, len(engines))
	room := make(chan struct{}, administered)
	ctx, giveUp := context.WithCancel(r.Context())
	defer giveUp()
	left := atomic.Int64{}
	left.Store(maxKeptLists)
	var all sync.WaitGroup
	for i, e := range engines {
		room <- struct{}{}
		all.Go(func() { // ends within AskTimeout
			defer func() { <-room }()
			if lists[i] = p.askList(ctx, r, e); lists[i].why != "" || left.Add(-lists[i].size) < 0 {
				giveUp() // without all of it there is no answer
			}
		})
	}
	all.Wait()
	data, listed := []json.RawMessage{}, false
	for _, l := range lists {
		if l.why != "" || left.Load() < 0 {
			p.refuse(w, r, refuse(http.StatusBadGateway, "engine_unreachable", cmp.Or(l.why, "all of it is too long")+": the list would not be whole"))
			return
		}
		listed = listed || l.listed
		data = append(data, l.data...)
	}
	if !listed {
		p.refuse(w, r, refuse(http.StatusNotFound, "not_found", "no engine keeps such a list"))
		return
	}
	q.tally.outcome = "ok"
	p.obs.outcome("ok").Inc()
	p.giveTime(w)
	writeJSON(w, http.StatusOK, edge.JSON(map[string]any{"object": "list", "data": data, "has_more": false}))
}

// keptList is what one engine keeps of a kind.
type keptList struct {
	data   []json.RawMessage
	size   int64
	listed bool
	why    string // it is not known
}

// askList asks one engine for all that it keeps, to the end of its answer.
func (p *Proxy) askList(ctx context.Context, r *http.Request, e *fleet.Engine) (l keptList) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.AskTimeout)
	defer cancel()
	resp, err := p.client.RoundTrip(p.toEngine(ctx, r, upstream.Payload{}, e))
	if err != nil {
		return keptList{why: "not all engines answer"}
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if a := (keptAnswer{resp: resp}); a.absent() {
		return l
	}
	var list struct{ Data []json.RawMessage }
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxKeptList+1))
	if err != nil || resp.StatusCode != http.StatusOK || len(text) > maxKeptList || json.Unmarshal(text, &list) != nil {
		return keptList{why: "an engine's list cannot be read"}
	}
	return keptList{data: list.Data, size: int64(len(text)), listed: true}
}

// beside leads a request that goes on with what an engine keeps to that engine. What no
// engine has is for one of them to refuse, but not while another may have it.
func (p *Proxy) beside(r *http.Request, q *call) *refusal {
	kind := q.keeps
	if kind == "batches" {
		kind = "files" // of which a batch's input is one
	}
	if !keptName(q.refers) {
		p.obs.kept[keptNot].Inc()
		return nil
	}
	engines := slices.DeleteFunc(p.keepers(r), func(e *fleet.Engine) bool { return e.Model() != q.m })
	e := p.remembered(kind, q.refers, engines)
	where := keptKnown
	if e == nil {
		a, failed := p.askAll(whoHas(r, kind, q.refers), engines)
		if where = keptNot; a.resp != nil && a.has() {
			e, where = a.engine, keptAsked
		}
		if a.drop(); a.resp == nil && failed {
			return notAllSay()
		}
	}
	p.obs.kept[where].Inc()
	if e == nil {
		return p.unlessUnknown(nil)
	}
	p.keptBy(q.m, q.payer.name, kind, q.refers, e.ID)
	selection.Allow(&q.options, []uint64{e.ID})
	return nil
}

// maxKeptHead is how much of an answer's beginning is looked at for its name.
const maxKeptHead = 16 << 10

// naming looks for the name of what an answer is about, which an engine keeps from now
// on.
type naming struct {
	kind string
	head []byte
}

// see takes a chunk of the answer, and reports whether no more is needed.
func (n *naming) see(p *Proxy, q *call, worker uint64, chunk []byte) (done bool) {
	n.head = append(n.head, chunk[:min(len(chunk), maxKeptHead-len(n.head))]...)
	if id := firstID(n.head); id != "" {
		p.keptBy(q.m, q.payer.name, n.kind, id, worker)
		return true
	}
	return len(n.head) == maxKeptHead
}

// firstID returns the first member "id" of an answer, which is its name: engines' own
// objects begin with it, and text that was generated cannot look like one, as its
// quotes are escaped.
func firstID(head []byte) string {
	const key = `"id"`
	for at := bytes.Index(head, []byte(key)); at >= 0; {
		rest := bytes.TrimLeft(head[at+len(key):], " \t\r\n")
		if value, ok := bytes.CutPrefix(rest, []byte(":")); ok {
			var in jsonscan.Reader
			in.Reset(value)
			if in.Peek() == '"' {
				id := string(in.Str())
				if in.Err() == nil {
					return id
				}
				return "" // not yet whole
			}
		}
		next := bytes.Index(head[at+len(key):], []byte(key))
		if next < 0 {
			break
		}
		at += len(key) + next
	}
	return ""
}
