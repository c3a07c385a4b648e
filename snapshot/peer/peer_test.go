package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/dump"
)

const (
	patience = time.Minute
	workers  = 9
)

var space = event.Space{Model: "m", BlockSize: 16}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// world is a broker, publishers, the oracle that has what they publish, and a
// replica that answers GET /v1/dump.
type world struct {
	t    *testing.T
	b    *broker.Broker
	pubs []*publish.Publisher
	peer *httptest.Server // in front of the replica; way decides what it does
	way  atomic.Pointer[http.HandlerFunc]
	real http.Handler

	mu     sync.Mutex
	rng    *rand.Rand
	oracle *core.Oracle
	held   [workers][]uint64
}

func newWorld(t *testing.T) *world {
	b, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	w := &world{t: t, b: b, rng: rand.New(rand.NewPCG(5, 6)), oracle: core.NewOracle()}
	for id := range uint64(workers) {
		w.pubs = append(w.pubs, w.publisher(id))
	}
	w.publish(200)
	set, in := w.replica("peer", nil)
	w.real = w.serve(set, in)
	w.peer = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if way := w.way.Load(); way != nil {
			(*way)(rw, r)
			return
		}
		w.real.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.peer.Close)
	w.equal(set)
	return w
}

func (w *world) publisher(id uint64) *publish.Publisher {
	w.t.Helper()
	p, err := publish.Open(deadline(w.t), publish.Config{
		Conn: w.b.Conn(), Space: space, Worker: id, BatchEvents: 4, Heartbeat: 50 * time.Millisecond,
		Log: slog.New(slog.DiscardHandler), Stream: publish.StreamConfig{MaxBytes: 64 << 20},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { w.kill(p) })
	return p
}

// kill ends a publisher, which then says and answers nothing more.
func (w *world) kill(p *publish.Publisher) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.Close(ctx)
}

// publish publishes events and waits until the stream has them.
func (w *world) publish(events int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for range events {
		id := w.rng.IntN(workers - 1) // the last one never stores a block
		ev := event.Event{Kind: event.Stored, Tier: event.Tier(w.rng.IntN(2))}
		if h := w.held[id]; len(h) > 0 && w.rng.IntN(3) == 0 {
			ev = event.Event{Kind: event.Removed, Tier: ev.Tier, Engine: []uint64{h[w.rng.IntN(len(h))]}}
		} else {
			if len(h) > 0 && w.rng.IntN(2) == 0 {
				ev.HasParent, ev.Parent = true, h[w.rng.IntN(len(h))]
				if !w.oracle.Knows(core.Holder(id), ev.Parent) {
					ev.HasParent = false
				}
			}
			for range 1 + w.rng.IntN(6) {
				e := w.rng.Uint64()
				ev.Engine, ev.Local = append(ev.Engine, e), append(ev.Local, e%32)
				w.held[id] = append(w.held[id], e)
			}
		}
		if ev.Kind == event.Stored {
			w.oracle.Store(core.Holder(id), &ev, false)
		} else {
			w.oracle.Remove(core.Holder(id), &ev, false)
		}
		if err := w.pubs[id].Publish(deadline(w.t), ev); err != nil {
			w.t.Error(err)
			return
		}
	}
	ev := event.Event{Kind: event.Removed, Engine: []uint64{1}}
	if err := w.pubs[workers-1].Publish(deadline(w.t), ev); err != nil {
		w.t.Error(err)
	}
	for _, p := range w.pubs {
		if err := p.Flush(deadline(w.t)); err != nil {
			w.t.Error(err)
		}
	}
}

// replica reads the stream from where it is told.
func (w *world) replica(name string, fill func(set *shard.Set) map[string]ingest.Start) (*shard.Set, *ingest.Ingest) {
	w.t.Helper()
	set := shard.New(shard.Config{Shards: 2})
	cfg := ingest.Config{Conn: w.b.Conn(), Replica: name, Index: ingest.Into(set), Discover: 20 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	if fill != nil {
		cfg.Start = fill(set)
	}
	in, err := ingest.Open(deadline(w.t), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { in.Close(); set.Close() })
	return set, in
}

// serve answers dumps of the replica.
func (w *world) serve(set *shard.Set, in *ingest.Ingest) http.Handler {
	w.t.Helper()
	var cfg query.Config
	flags := conf.New("test", "A test.")
	cfg.Declare(flags)
	if _, err := flags.Run([]string{"--http-listen=127.0.0.1:0", "--http-max-dumps=8"}, nil, io.Discard); err != nil {
		w.t.Fatal(err)
	}
	s, err := query.New(cfg, query.Deps{
		Index: query.Shards{Set: set}, Metrics: obs.NewMetrics(), Log: slog.New(slog.DiscardHandler),
		At: func(ctx context.Context, sp event.Space, queue func() error, wait func()) (dump.Position, error) {
			start, err := in.Cut(ctx, stream.Name("default", sp), queue, wait)
			return PositionOf(start), err
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ln, err := s.Listen(deadline(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }()
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = s.Shutdown(ctx) // a client may be in the middle of a dump
		if err := <-served; err != nil {
			w.t.Error(err)
		}
	})
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: ln.Addr().String()})
	p.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	return p
}

func (w *world) equal(set *shard.Set) {
	w.t.Helper()
	w.mu.Lock()
	want := w.oracle.Digest(shard.SpaceHash(space), func(h core.Holder) (uint64, uint32) { return uint64(h), 0 })
	w.mu.Unlock()
	end := time.Now().Add(patience)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for ; ; <-ticker.C {
		if sp := set.Lookup(space); sp != nil {
			got, err := sp.Digest(deadline(w.t))
			if err != nil {
				w.t.Fatal(err)
			}
			if got == want {
				return
			}
		}
		if time.Now().After(end) {
			w.t.Fatal("in vain: the index equals the oracle")
		}
	}
}

func (w *world) infos() []stream.Info {
	w.t.Helper()
	js, err := jetstream.New(w.b.Conn())
	if err != nil {
		w.t.Fatal(err)
	}
	infos, err := stream.List(deadline(w.t), js, "default")
	if err != nil || len(infos) != 1 {
		w.t.Fatalf("%v, %v", infos, err)
	}
	return infos
}

func (w *world) source(change func(*Config)) *Source {
	w.t.Helper()
	cfg := Config{URL: w.peer.URL, Wait: time.Millisecond, Log: slog.New(slog.DiscardHandler), Progress: new(startup.Progress)}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(s.Close)
	return s
}

// cutting passes requests on and breaks the answers off after so many bytes, each
// a little later than the one before, as often as told.
func (w *world) cutting(times int, bytes int) (cuts *atomic.Int64) {
	cuts = new(atomic.Int64)
	way := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n := cuts.Add(1)
		if n > int64(times) {
			w.real.ServeHTTP(rw, r)
			return
		}
		r.Header.Del("Accept-Encoding") // so that what came is there
		w.real.ServeHTTP(&cutter{ResponseWriter: rw, left: bytes + int(n)*7}, r)
	})
	w.way.Store(&way)
	return cuts
}

// cutter breaks the connection off after some bytes.
type cutter struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (c *cutter) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		_, _ = c.ResponseWriter.Write(p[:max(0, len(p)+c.left)])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// Unwrap lets a ResponseController flush.
func (c *cutter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// A newcomer that copies a peer, while everything goes on, and reads the stream
// from there has what the oracle has: also over broken connections, and although
// the stream no longer has most of it and a worker is dead.
func TestANewcomerCopiesAPeer(t *testing.T) {
	for _, cuts := range []int{0, 4} {
		t.Run(fmt.Sprint(cuts, " cuts"), func(t *testing.T) {
			w := newWorld(t)
			w.kill(w.pubs[3])
			w.pubs[3] = w.publisher(3) // a second incarnation
			w.oracle.Clear(3, 0, true)
			w.held[3] = nil
			w.publish(100)
			info := w.infos()[0]
			js, err := jetstream.New(w.b.Conn())
			if err != nil {
				t.Fatal(err)
			}
			var seen *atomic.Int64
			if cuts > 0 {
				seen = w.cutting(cuts, 6000)
			}
			src := w.source(nil)
			done := make(chan struct{})
			go func() { defer close(done); w.publish(300) }()
			set, in := w.replica("newcomer", func(set *shard.Set) map[string]ingest.Start {
				starts, err := src.CopyAll(deadline(t), w.infos(), set)
				if err != nil || len(starts) != 1 {
					t.Fatalf("%v, %v", starts, err)
				}
				// What the peer has is not read again: the stream has it no more.
				s, err := js.Stream(deadline(t), info.Name)
				if err == nil {
					err = s.Purge(deadline(t), jetstream.WithPurgeSequence(starts[info.Name].Seq))
				}
				if err != nil {
					t.Fatal(err)
				}
				return starts
			})
			<-done
			w.equal(set)
			for _, k := range in.Ranks() {
				if k.Gaps > 0 || k.Dumps > 0 || k.Recoveries > 0 {
					t.Errorf("worker %d: %d gaps, %d recoveries", k.Worker, k.Gaps, k.Recoveries)
				}
			}
			if seen != nil && seen.Load() <= int64(cuts) {
				t.Errorf("the dump was asked for %d times", seen.Load())
			}
			if r := src.cfg.Progress.Report(); r.Phase != startup.Copying || r.Bytes == 0 || r.Blocks == 0 {
				t.Errorf("its progress: %+v", r)
			}
			w.publish(50)
			w.equal(set)
		})
	}
}

// A peer that dies in the middle leaves nothing behind: the newcomer reads the
// stream.
func TestAPeerThatDies(t *testing.T) {
	w := newWorld(t)
	cuts := w.cutting(1<<30, 9000)
	var log bytes.Buffer
	src := w.source(func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	alone := func(set *shard.Set) map[string]ingest.Start {
		starts, err := src.CopyAll(deadline(t), w.infos(), set)
		if err != nil || len(starts) != 0 {
			t.Fatalf("%v, %v", starts, err)
		}
		sp := set.Lookup(space)
		if n := len(sp.Ranks()); n > 0 {
			t.Errorf("%d ranks are left", n)
		}
		if l, err := sp.BeginLoad(nil, 1, 0); err != nil { // a snapshot may still be loaded
			t.Error(err)
		} else {
			l.Abort()
		}
		return starts
	}
	// Each attempt gets further until the cut comes within a rank: that is tried
	// some times more, and then it is over.
	way := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		cuts.Add(1)
		r.Header.Del("Accept-Encoding")
		left := 9000
		if r.URL.Query().Has("cursor") {
			left = 10
		}
		w.real.ServeHTTP(&cutter{ResponseWriter: rw, left: left}, r)
	})
	w.way.Store(&way)
	set, _ := w.replica("newcomer", alone)
	w.equal(set)
	if n := cuts.Load(); n < attempts || n > 2*attempts {
		t.Errorf("it was asked %d times", n)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "nothing is taken from the peer") {
		t.Errorf("the log: %s", log.String())
	}
	w.peer.Close()
	set, _ = w.replica("another", alone)
	w.equal(set)
}

// What is no dump of this space is refused with a reason, and nothing is shown.
func TestRefusedDumps(t *testing.T) {
	w := newWorld(t)
	info := w.infos()[0]
	resp, err := http.Get(w.peer.URL + "/v1/dump?model=m")
	if err != nil {
		t.Fatal(err)
	}
	good, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	replace := func(old, text string) []byte {
		if !bytes.Contains(good, []byte(old)) {
			t.Fatalf("no %s in %.300s", old, good)
		}
		return bytes.Replace(good, []byte(old), []byte(text), 1)
	}
	at := bytes.Index(good, []byte(`"local":[`)) + len(`"local":[`)
	digit := bytes.Clone(good)
	digit[at] = '0' + (digit[at]-'0'+1)%10
	for name, c := range map[string]struct {
		text []byte
		want error
		says string
	}{
		"a digit":     {digit, dump.ErrDamaged, "says"},
		"model":       {replace(`"model":"m"`, `"model":"other"`), ErrUnusable, `model "other"`},
		"block size":  {replace(`"block_size":16`, `"block_size":32`), ErrUnusable, "block size 32"},
		"hash scheme": {replace(`seed=1337`, `seed=7`), ErrUnusable, "seed=7"},
		"old version": {replace(`"version":2`, `"version":1`), dump.ErrVersion, "1; this program reads 2"},
		"new version": {replace(`"version":2`, `"version":3`), dump.ErrVersion, "3"},
		"no stream":   {replace(`"stream":`, `"x":`), ErrUnusable, "does not read the stream"},
		"another one": {replace(`"created":"2`, `"created":"1`), ErrUnusable, "this one is of"},
		"incarnation": {bytes.ReplaceAll(good, []byte(`"last_event_id"`), []byte(`"ended":["x"],"last_event_id"`)), dump.ErrDamaged, "no incarnation"},
		"no dump":     {[]byte("<html>\n\n"), dump.ErrDamaged, "invalid"},
	} {
		way := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(c.text) })
		w.way.Store(&way)
		set := shard.New(shard.Config{Shards: 2})
		sp, err := set.Open(space)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.source(nil).Copy(deadline(t), info, sp)
		if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if n := len(sp.Ranks()); n > 0 {
			t.Errorf("%s: %d ranks are shown", name, n)
		}
		set.Close()
	}
}

// A token is sent to the peer, and to nobody that it names; a peer that does not
// know the space is no failure.
func TestTokensAndUnknownSpaces(t *testing.T) {
	w := newWorld(t)
	info := w.infos()[0]
	info.Space.Group = "another"
	set := shard.New(shard.Config{})
	defer set.Close()
	starts, err := w.source(nil).CopyAll(deadline(t), []stream.Info{info}, set)
	if err != nil || len(starts) != 0 {
		t.Errorf("an unknown space: %v, %v", starts, err)
	}
	sp, err := set.Open(info.Space)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.source(nil).Copy(deadline(t), info, sp); !errors.Is(err, ErrUnknown) {
		t.Errorf("an unknown space: %v", err)
	}
	var tokens atomic.Pointer[string]
	away := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirection was followed") }))
	defer away.Close()
	way := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		text := r.Header.Get("Authorization")
		tokens.Store(&text)
		http.Redirect(rw, r, away.URL, http.StatusFound)
	})
	w.way.Store(&way)
	src := w.source(func(c *Config) { c.Token = func() (string, error) { return "secret", nil } })
	if _, err := src.Copy(deadline(t), info, sp); !errors.Is(err, ErrGone) {
		t.Errorf("a redirection: %v", err)
	}
	if text := tokens.Load(); text == nil || *text != "Bearer secret" {
		t.Errorf("the token: %v", text)
	}
	for _, bad := range []string{"", "127.0.0.1:8090", "ftp://127.0.0.1", "http://u:p@127.0.0.1", "http://127.0.0.1?x=1"} {
		if _, err := New(Config{URL: bad}); err == nil {
			t.Errorf("%q is a URL", bad)
		}
	}
}

// A peer that says nothing is not waited for.
func TestASilentPeer(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{}, 100)
	way := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	w.way.Store(&way)
	set := shard.New(shard.Config{})
	defer set.Close()
	sp, err := set.Open(space)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.source(func(c *Config) { c.Stall = 20 * time.Millisecond }).Copy(deadline(t), w.infos()[0], sp)
	if !errors.Is(err, ErrGone) || len(asked) > attempts {
		t.Errorf("%v after %d requests", err, len(asked))
	}
}
