package objective

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/discover/kube"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Settings say whose objectives are read.
type Settings struct {
	Pool      string // "": nobody's
	Namespace string
	Kube      kube.Config
}

// Declare adds the settings to the set.
func (s *Settings) Declare(set *conf.Set) {
	set.String(&s.Pool, "picker-pool", "", `InferencePool whose InferenceObjectives (inference.networking.x-k8s.io/v1alpha2) are followed, by the Kubernetes API: each
		stands for name=priority in --picker-objectives, which counts more. Empty: none are.`)
	s.Kube.Declare(set, &s.Namespace)
}

// group is the pool's: what a poolRef without one means, and the only one that is meant here.
const group = "inference.networking.k8s.io"

// parse reads an objective. It is none of the pool's if of is false.
func parse(text []byte, pool string) (name string, priority int, of bool, err error) {
	var o struct {
		Metadata struct{ Name string }
		Spec     struct {
			Priority int64 // 0 is what one without it has
			PoolRef  struct {
				Group *string
				Kind  string
				Name  string
			}
		}
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o.Metadata.Name, 0, false, fmt.Errorf("an InferenceObjective: %w", err)
	}
	if o.Metadata.Name == "" {
		return "", 0, false, errors.New("an InferenceObjective without a name")
	}
	ref := &o.Spec.PoolRef
	of = ref.Name == pool && (ref.Kind == "" || ref.Kind == "InferencePool") && (ref.Group == nil || *ref.Group == group)
	return o.Metadata.Name, int(min(max(o.Spec.Priority, math.MinInt32), math.MaxInt32)), of, nil
}

// Book has the objectives of one pool.
type Book struct {
	cfg  Settings
	log  *slog.Logger
	kube *kube.Client
	wait time.Duration                  // after a request in vain, at first
	list atomic.Pointer[map[string]int] // nil: not known yet
	away atomic.Pointer[string]         // why the API server's last answer was none; nil: it was one

	answered, failed, unread *metrics.Counter
}

// Open returns a Book that is empty until Follow. The error is about the settings.
func Open(s Settings, m *obs.Metrics, log *slog.Logger) (*Book, error) {
	if s.Namespace == "" {
		s.Namespace = kube.Namespace()
	}
	if s.Namespace == "" {
		return nil, conf.Wrong{Err: errors.New("--kube-namespace is needed outside of a pod, with --picker-pool")}
	}
	for setting, name := range map[string]string{"--picker-pool": s.Pool, "--kube-namespace": s.Namespace} {
		if !kube.IsName(name) {
			return nil, conf.Wrong{Err: fmt.Errorf("%s: %q is no name of Kubernetes", setting, name)}
		}
	}
	c, err := kube.New(s.Kube)
	if err != nil {
		return nil, err
	}
	b := &Book{cfg: s, log: log, kube: c, wait: time.Second}
	m.Gauge("kvatlas_picker_objectives", "InferenceObjectives of --picker-pool that are known. -1: none were read yet.", func() float64 {
		if list := b.list.Load(); list != nil {
			return float64(len(*list))
		}
		return -1
	})
	const family = "kvatlas_picker_kubernetes_requests_total"
	const help = "Lists and watches of InferenceObjectives, by result: answered, failed (also a resource version that is too old)."
	b.answered, b.failed = m.Counter(family, help, "result", "answered"), m.Counter(family, help, "result", "failed")
	b.unread = m.Counter("kvatlas_picker_unread_objectives_total", "InferenceObjectives that could not be read.")
	return b, nil
}

// Priority returns that of an objective, and whether it is known. A nil Book knows none.
func (b *Book) Priority(name string) (priority int, known bool) {
	if b == nil {
		return 0, false
	}
	list := b.list.Load()
	if list == nil {
		return 0, false
	}
	priority, known = (*list)[name]
	return priority, known
}

// Why says why the list may be out of date; "" if it is not.
func (b *Book) Why() string {
	if why := b.away.Load(); why != nil {
		return *why
	}
	if b.list.Load() == nil {
		return "the InferenceObjectives are not known yet"
	}
	return ""
}

// Bounds of what is followed. A pool has some tens of objectives.
const (
	most    = 1000 // of a namespace
	watch   = 5 * time.Minute
	longest = time.Minute
)

// Follow keeps the list until ctx ends.
func (b *Book) Follow(ctx context.Context) {
	defer b.kube.Close()
	err := b.kube.Follow(ctx, kube.List{
		Path: "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/" + b.cfg.Namespace + "/inferenceobjectives",
		Most: most, Watch: watch, Least: b.wait, Longest: longest,
		Sink:    func(_ context.Context, c kube.Change) error { b.apply(c); return nil },
		Contact: b.contact,
	})
	if ctx.Err() == nil {
		b.log.Error("InferenceObjectives are not followed any more", "error", err)
	}
}

// apply makes the next list of the last one, which readers may still have. What cannot be read is
// as it was; without its name that may be any.
func (b *Book) apply(c kube.Change) {
	next, said, hidden := make(map[string]int), make(map[string]bool), false
	var last map[string]int
	if was := b.list.Load(); was != nil {
		last = *was
	}
	for _, text := range c.Objects {
		name, priority, of, err := parse(text, b.cfg.Pool)
		if err != nil && (c.Kind != kube.Deleted || name == "") {
			b.unread.Inc()
			b.log.Warn("an InferenceObjective cannot be read; what is known of it holds on", "error", err)
			priority, of = last[name]
			hidden = hidden || name == ""
		}
		if said[name] = true; of && c.Kind != kube.Deleted {
			next[name] = priority
		}
	}
	if c.Kind != kube.Replaced || hidden {
		for name, priority := range last {
			if !said[name] {
				next[name] = priority
			}
		}
	}
	b.list.Store(&next)
}

// contact takes how a request to the API server ended.
func (b *Book) contact(err error) {
	if err == nil {
		b.answered.Inc()
		b.away.Store(nil)
		return
	}
	b.failed.Inc()
	why := err.Error()
	if b.away.Swap(&why) == nil {
		b.log.Warn("the API server is away or says no; what is known of InferenceObjectives holds on", "error", err)
	}
}
