package console

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

const typeEvents = "text/event-stream"

// frameEvery is how often the fleet is looked at while somebody reads.
const frameEvery = time.Second

// hub has the readers of events, by what they may see, and the sampler that makes frames
// for them. Its mutex is held to come and go, and by the sampler to see who is there.
type hub struct {
	cfg *Config
	m   *meters

	places *places // of readers

	mu     sync.Mutex
	views  map[string]*view // by whom they are for: see viewKey
	closed bool
	wake   chan struct{} // ends the sampler's wait: somebody new is there, or it is closed
	done   chan struct{} // closed when the sampler has ended; nil: it does not run
}

func newHub(cfg *Config) *hub {
	h := &hub{cfg: cfg, places: newPlaces(cfg.Readers), views: make(map[string]*view), wake: make(chan struct{}, 1)}
	h.m = newMeters(cfg.Metrics, h)
	return h
}

// view is what some readers get: those of one tenant, or those that may see all.
type view struct {
	tenant  *string
	readers int
	metrics [numMetrics]int // readers of each
	frame   atomic.Pointer[frame]
	first   chan struct{} // closed with the first frame
	maker   maker         // the sampler's
}

func viewKey(tenant *string) string {
	if tenant == nil {
		return ""
	}
	return "t" + *tenant
}

// reader follows the frames of a view. It is an edge.Stream: one goroutine calls Next.
type reader struct {
	h      *hub
	v      *view
	metric metric
	last   *frame // that was sent; nil: none
	closed sync.Once
}

// follow answers GET api/events.
func (c *Console) follow(r *request) (*edge.Reply, *edge.Problem) {
	m, ok := metricOf(r.args.Get("metric"))
	if !ok {
		return nil, edge.Bad("metric", edge.OutOfRange, "give held, load, hit, lag or age")
	}
	s, no := c.events.join(r.Tenant, m)
	if no != nil {
		return nil, no
	}
	return &edge.Reply{Status: http.StatusOK, Type: typeEvents, Stream: s}, nil
}

// join adds a reader.
func (h *hub) join(tenant *string, m metric) (*reader, *edge.Problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, edge.Refuse(http.StatusServiceUnavailable, "request", edge.NotReady, "the program is about to stop")
	}
	if why := h.places.take(tenant); why != "" {
		h.m.readers.Inc()
		return nil, edge.Refuse(http.StatusServiceUnavailable, "request", edge.Busy, "no page more may follow events: "+why+" (--console-readers)")
	}
	key := viewKey(tenant)
	v := h.views[key]
	if v == nil {
		v = &view{tenant: tenant, first: make(chan struct{})}
		h.views[key] = v
	}
	v.readers++
	v.metrics[m]++
	if h.done == nil {
		h.done = make(chan struct{})
		go h.sample(h.done) // ends when nobody reads, or with close
	}
	if v.frame.Load() == nil {
		select {
		case h.wake <- struct{}{}:
		default:
		}
	}
	return &reader{h: h, v: v, metric: m}, nil
}

// Close implements edge.Stream.
func (r *reader) Close() {
	r.closed.Do(func() {
		r.h.mu.Lock()
		defer r.h.mu.Unlock()
		r.h.places.give(r.v.tenant)
		r.v.readers--
		r.v.metrics[r.metric]--
		if r.v.readers == 0 {
			delete(r.h.views, viewKey(r.v.tenant)) // who comes later begins anew
		}
	})
}

// Next implements edge.Stream: it returns the newest frame that was not sent yet.
func (r *reader) Next(gone <-chan struct{}) ([]byte, error) {
	wait := r.v.first
	if r.last != nil {
		wait = r.last.over
	}
	select {
	case <-wait:
	case <-gone:
		return nil, io.EOF
	}
	f := r.v.frame.Load()
	if f.end {
		return nil, io.EOF
	}
	last := r.last
	r.last = f
	if last != nil && f.number > last.number+1 {
		r.h.m.skipped.Add(int(f.number - last.number - 1))
	}
	if last != nil && last.number+1 == f.number && last.epoch == f.epoch && f.delta[r.metric] != nil {
		return f.delta[r.metric], nil
	}
	return f.whole(r.metric, last), nil
}

// close ends all streams.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	done := h.done
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
	if done != nil {
		<-done
	}
}

// shown is a view and what of it is read.
type shown struct {
	*view
	metrics [numMetrics]int
}

// present returns what is read; without readers the sampler is to end.
func (h *hub) present() (views []shown, goOn bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.views {
		views = append(views, shown{v, v.metrics})
	}
	if h.closed {
		return views, false
	}
	if len(views) == 0 {
		h.done = nil // the next reader starts another one
		return nil, false
	}
	return views, true
}

// sample makes frames while somebody reads.
func (h *hub) sample(done chan struct{}) {
	defer close(done)
	s := newSampler(h.cfg)
	defer s.close()
	ticker := time.NewTicker(frameEvery)
	defer ticker.Stop()
	for tick := true; ; {
		views, goOn := h.present()
		if !goOn {
			for _, v := range views {
				v.show(&frame{end: true})
			}
			return
		}
		if tick {
			s.look(time.Now())
		}
		for i := range views {
			if v := &views[i]; tick || v.frame.Load() == nil {
				v.show(v.maker.make(s, v.tenant, &v.metrics))
			}
		}
		select {
		case <-ticker.C:
			tick = true
		case <-h.wake: // somebody new gets the last second's
			tick = false
		}
	}
}

// show gives the frame to the readers.
func (v *view) show(f *frame) {
	f.over = make(chan struct{})
	if old := v.frame.Swap(f); old != nil {
		close(old.over)
	} else {
		close(v.first)
	}
}
