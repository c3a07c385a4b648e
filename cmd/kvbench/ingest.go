package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/shard"
)

// blocksPerEvent is the length of every stored chain.
const blocksPerEvent = 64

// ingestOptions are the flags of ingest.
type ingestOptions struct {
	mode, url, profile  string
	publishers, batch   int
	seconds, rate       float64
	chains, shards, mib int
}

func runIngest(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseIngest(args, stderr)
	if err != nil {
		return err
	}
	return measureIngest(ctx, o, stdout)
}

func parseIngest(args []string, stderr io.Writer) (ingestOptions, error) {
	var o ingestOptions
	f := newFlags("ingest", stderr)
	f.StringVar(&o.mode, "mode", "jetstream", "how events are published: jetstream or core")
	f.StringVar(&o.url, "nats", "", "`URL` of a NATS server; default a server of its own, with synced writes")
	f.IntVar(&o.publishers, "publishers", 4, "workers that publish at once")
	f.IntVar(&o.batch, "batch", 64, "events of 64 blocks in a message")
	f.Float64Var(&o.seconds, "seconds", 5, "how long each of the four measurements goes on: floor, full load, half load or --rate, and the floor at that")
	f.Float64Var(&o.rate, "rate", 0, "`blocks` a second of all publishers while visibility is measured; default half of the full load")
	f.IntVar(&o.chains, "chains", 2000, "chains that a worker holds at most; then the oldest is removed for each new one")
	f.IntVar(&o.shards, "shards", 1, "owner goroutines of the index")
	f.IntVar(&o.mib, "stream-mib", 4096, "size of the stream in MiB, with jetstream")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the measurement at full load to `file`")
	return o, parseFlags(f, args, func() error {
		switch {
		case o.mode != "jetstream" && o.mode != "core":
			return fmt.Errorf("--mode %q: jetstream or core", o.mode)
		case min(o.publishers, o.batch, o.chains, o.shards, o.mib) < 1 || o.seconds <= 0:
			return errors.New("--publishers, --batch, --chains, --shards, --stream-mib and --seconds are above 0")
		case o.rate < 0:
			return errors.New("--rate is not below 0")
		}
		return nil
	})
}

// ingestResult is the line that ingest prints.
type ingestResult struct {
	Mode           string  `json:"mode"`
	BlocksPerS     float64 `json:"blocks_per_s"`
	EventsPerS     float64 `json:"events_per_s"`
	MessagesPerS   float64 `json:"messages_per_s"`
	FloorBlocksPS  float64 `json:"floor_blocks_per_s"`
	FloorP50       float64 `json:"floor_visible_p50_ms"` // at the rate at which visibility is measured
	FloorP99       float64 `json:"floor_visible_p99_ms"`
	VisibleP50     float64 `json:"visible_p50_ms"`
	VisibleP99     float64 `json:"visible_p99_ms"`
	VisibleP999    float64 `json:"visible_p999_ms"`
	Lost           int64   `json:"lost"`
	Gaps           uint64  `json:"gaps"`
	HalfBlocksPerS float64 `json:"half_load_blocks_per_s"`
	Probes         int     `json:"probes"`
}

// ingestBench is one measurement's surroundings.
type ingestBench struct {
	o         ingestOptions
	namespace string
	sending   *nats.Conn
	reading   *nats.Conn
	space     event.Space
}

func measureIngest(ctx context.Context, o ingestOptions, stdout io.Writer) (err error) {
	log := slog.New(slog.DiscardHandler)
	cfg := broker.Config{URL: o.url, SyncAlways: true, Log: log}
	if o.url == "" {
		dir, err := os.MkdirTemp("", "kvbench")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // best effort, at exit
		cfg.URL, cfg.DataDir = broker.Embedded, dir
	}
	b := &ingestBench{o: o, namespace: fmt.Sprintf("kvbench-%d", os.Getpid()), space: event.Space{Model: "kvbench", BlockSize: 16}}
	for _, nc := range []**nats.Conn{&b.sending, &b.reading} {
		br, err := broker.Open(ctx, cfg)
		if err != nil {
			return err
		}
		defer func() { _ = br.Close() }() //nolint:revive // each lives until the measurement ends
		*nc = br.Conn()
	}
	r := ingestResult{Mode: o.mode}
	if r.FloorBlocksPS, err = b.floor(ctx, 0, nil); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	if err := b.load(ctx, &r); err != nil {
		return err
	}
	visible := newLatencies()
	perSecond := r.HalfBlocksPerS / blocksPerEvent / float64(o.batch*o.publishers)
	if _, err = b.floor(ctx, perSecond, visible); err != nil {
		return fmt.Errorf("floor at that rate: %w", err)
	}
	r.FloorP50, r.FloorP99 = visible.us(.5)/1e3, visible.us(.99)/1e3
	return json.NewEncoder(stdout).Encode(r)
}

// chains makes up what a worker stores and removes.
type chains struct {
	rng  *rand.Rand
	held [][]uint64
	most int
}

func newChains(seed uint64, most int) *chains {
	return &chains{rng: rand.New(rand.NewPCG(seed, 1)), most: most}
}

// next returns the next event: a chain that is stored, or, with enough of them,
// the oldest one that is removed.
func (c *chains) next() event.Event {
	if len(c.held) == c.most {
		old := c.held[0]
		c.held = c.held[1:]
		return event.Event{Kind: event.Removed, Engine: old}
	}
	blocks := make([]uint64, blocksPerEvent)
	for i := range blocks {
		blocks[i] = c.rng.Uint64()
	}
	c.held = append(c.held, blocks)
	return event.Event{Kind: event.Stored, Engine: blocks, Local: blocks}
}

// floor sends messages of the same kind through the same server to a reader
// that only counts them; at most perSecond of each publisher if that is not 0. visible,
// if it is given, gets how long messages take that only say when they were sent.
func (b *ingestBench) floor(ctx context.Context, perSecond float64, visible *latencies) (blocksPerS float64, err error) {
	space := event.Space{Model: "kvbench-floor", BlockSize: 16}
	var read atomic.Int64
	var mu sync.Mutex // visible, which is the caller's after
	got := func(data []byte) {
		if len(data) != 8 {
			read.Add(1)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if visible == nil {
			return
		}
		visible.add(time.Now().UnixNano() - int64(binary.LittleEndian.Uint64(data)))
	}
	var refused atomic.Int64
	js, err := jetstream.New(b.sending, jetstream.WithPublishAsyncMaxPending(64*b.o.publishers),
		jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) { refused.Add(1) }))
	if err != nil {
		return 0, err
	}
	if b.o.mode == "core" {
		sub, err := b.reading.Subscribe(stream.LiveSubjects(b.namespace), func(m *nats.Msg) { got(m.Data) })
		if err != nil {
			return 0, err
		}
		defer func() { _ = sub.Unsubscribe() }()
		if err := errors.Join(sub.SetPendingLimits(-1, -1), b.reading.Flush()); err != nil {
			return 0, err
		}
	} else {
		size := int64(b.o.mib) << 20 // at once: nothing here enlarges it
		info, err := stream.Ensure(ctx, js, b.namespace, space, stream.Config{MaxBytes: size, FirstBytes: size})
		if err != nil {
			return 0, err
		}
		defer func() { _ = js.DeleteStream(context.WithoutCancel(ctx), info.Name) }()
		stop, err := b.count(ctx, info.Name, got)
		if err != nil {
			return 0, err
		}
		defer stop()
	}
	var sent atomic.Int64
	var running sync.WaitGroup
	begun := time.Now()
	end := begun.Add(time.Duration(b.o.seconds * float64(time.Second)))
	for w := range uint64(b.o.publishers) {
		c := newChains(w, b.o.chains)
		batch := event.Batch{Space: space, Worker: w, Incarnation: 1}
		for id := range b.o.batch {
			ev := c.next()
			ev.ID = uint64(id) + 1
			batch.Events = append(batch.Events, ev)
		}
		data := event.AppendBatch(nil, &batch)
		running.Go(func() {
			for n := 0; time.Now().Before(end) && ctx.Err() == nil; n++ {
				if perSecond > 0 {
					if wait := time.Until(begun.Add(time.Duration(float64(n) / perSecond * float64(time.Second)))); wait > 0 {
						time.Sleep(wait)
					}
				}
				if b.o.mode == "core" {
					if b.sending.Publish(stream.LiveSubject(b.namespace, space, w), data) == nil {
						sent.Add(1)
					}
					for sent.Load()-read.Load() > 256 && time.Now().Before(end) {
						time.Sleep(20 * time.Microsecond)
					}
					continue
				}
				if _, err := js.PublishAsync(stream.Subject(b.namespace, space, w), data, jetstream.WithStallWait(time.Second)); err == nil {
					sent.Add(1)
				}
			}
		})
	}
	if visible != nil {
		running.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				data := binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
				if b.o.mode == "core" {
					_ = b.sending.Publish(stream.LiveSubject(b.namespace, space, 1<<40), data) // one that is lost is not seen
				} else {
					_, _ = js.PublishAsync(stream.Subject(b.namespace, space, 1<<40), data, jetstream.WithStallWait(time.Second))
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	running.Wait()
	if err := until(ctx, 30*time.Second, func() bool { return read.Load() >= sent.Load() || refused.Load() > 0 }); err != nil {
		return 0, fmt.Errorf("%d of %d messages read: %w", read.Load(), sent.Load(), err)
	}
	if n := refused.Load(); n > 0 {
		return 0, fmt.Errorf("the server refused %d messages: is --stream-mib enough for --seconds?", n)
	}
	mu.Lock()
	visible = nil
	mu.Unlock()
	blocks := float64(read.Load()) * float64(b.o.batch) * blocksPerEvent
	return blocks / time.Since(begun).Seconds(), nil
}

// count reads the stream as a replica does, and only calls got.
func (b *ingestBench) count(ctx context.Context, name string, got func(data []byte)) (stop func(), err error) {
	js, err := jetstream.New(b.reading)
	if err != nil {
		return nil, err
	}
	c, err := js.CreateConsumer(ctx, name, jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy, MaxAckPending: -1, MemoryStorage: true})
	if err != nil {
		return nil, err
	}
	consuming, err := c.Consume(func(m jetstream.Msg) { got(m.Data()) }, jetstream.PullMaxMessagesWithBytesLimit(2048, 8<<20))
	if err != nil {
		return nil, err
	}
	return consuming.Stop, nil
}

// until polls until ok or the time is over.
func until(ctx context.Context, limit time.Duration, ok func() bool) error {
	deadline := time.Now().Add(limit)
	for !ok() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s", limit)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// load publishes into an index: as fast as it goes, then at half that speed,
// or at the one asked for, with probes of how soon a block is found.
func (b *ingestBench) load(ctx context.Context, r *ingestResult) error {
	set := shard.New(shard.Config{Shards: b.o.shards})
	defer set.Close()
	space, err := set.Open(b.space)
	if err != nil {
		return err
	}
	pubs := make([]*publish.Publisher, b.o.publishers+1) // the last one probes
	for w := range pubs {
		cfg := publish.Config{Conn: b.sending, Namespace: b.namespace, Space: b.space, Worker: uint64(w), BatchEvents: b.o.batch,
			BatchBytes: 1 << 30, MaxPending: 8 << 20, Log: slog.New(slog.DiscardHandler), Stream: publish.StreamConfig{MaxBytes: int64(b.o.mib) << 20}}
		if b.o.mode == "core" {
			cfg.Transport = publish.CoreNATS
		}
		p, err := publish.Open(ctx, cfg)
		if err != nil {
			return err
		}
		defer func() { _ = p.Close(ctx) }() //nolint:revive // each lives until the measurement ends
		pubs[w] = p
	}
	if b.o.mode == "jetstream" {
		js, err := jetstream.New(b.sending)
		if err != nil {
			return err
		}
		defer func() { _ = js.DeleteStream(context.WithoutCancel(ctx), stream.Name(b.namespace, b.space)) }()
	}
	in, err := ingest.Open(ctx, ingest.Config{Conn: b.reading, Namespace: b.namespace, Replica: "kvbench", Discover: 50 * time.Millisecond,
		Index: func(sp event.Space) (ingest.Applier, error) { return set.Open(sp) }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer in.Close()
	written, err := profile(b.o.profile)
	if err != nil {
		return err
	}
	sources := make([]*chains, b.o.publishers)
	for w := range sources {
		sources[w] = newChains(uint64(w), b.o.chains)
	}
	events, took, err := b.drive(ctx, in, pubs, sources, 0)
	if err = errors.Join(err, written()); err != nil {
		return err
	}
	r.EventsPerS = float64(events) / took.Seconds()
	r.BlocksPerS = r.EventsPerS * blocksPerEvent
	r.MessagesPerS = r.EventsPerS / float64(b.o.batch)

	visible := newLatencies()
	probing, stop := context.WithCancel(ctx)
	var probes sync.WaitGroup
	probes.Go(func() { probe(probing, pubs[b.o.publishers], space, visible) })
	rate := r.EventsPerS / 2
	if b.o.rate > 0 {
		rate = b.o.rate / blocksPerEvent
	}
	half, took, err := b.drive(ctx, in, pubs, sources, rate/float64(b.o.publishers))
	stop()
	probes.Wait()
	if err != nil {
		return err
	}
	r.HalfBlocksPerS = float64(half) / took.Seconds() * blocksPerEvent
	r.Probes = visible.n
	r.VisibleP50, r.VisibleP99, r.VisibleP999 = visible.us(.5)/1e3, visible.us(.99)/1e3, visible.us(.999)/1e3
	for _, k := range in.Ranks() {
		r.Gaps += k.Gaps
		if k.Incomplete {
			r.Lost += int64(k.Missed)
		}
	}
	r.Lost += events + half - b.applied(in)
	return nil
}

// applied returns how many events of the load the index has had.
func (b *ingestBench) applied(in *ingest.Ingest) (n int64) {
	for _, k := range in.Ranks() {
		if k.Worker < uint64(b.o.publishers) {
			n += int64(k.LastID)
		}
	}
	return n
}

// drive publishes for a while, at most perSecond events a second of each
// publisher (0: as many as it takes), and waits until they are applied.
func (b *ingestBench) drive(ctx context.Context, in *ingest.Ingest, pubs []*publish.Publisher, sources []*chains, perSecond float64) (int64, time.Duration, error) {
	before := b.applied(in)
	var sent atomic.Int64
	errs := make([]error, len(sources))
	var running sync.WaitGroup
	begun := time.Now()
	end := begun.Add(time.Duration(b.o.seconds * float64(time.Second)))
	for w, c := range sources {
		running.Go(func() {
			n := 0
			for time.Now().Before(end) && errs[w] == nil {
				if perSecond > 0 {
					if wait := time.Until(begun.Add(time.Duration(float64(n) / perSecond * float64(time.Second)))); wait > 0 {
						time.Sleep(wait)
					}
				}
				errs[w] = pubs[w].Publish(ctx, c.next())
				n++
			}
			sent.Add(int64(n))
		})
	}
	running.Wait()
	for _, p := range pubs {
		errs = append(errs, p.Flush(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, 0, err
	}
	if err := until(ctx, time.Minute, func() bool { return b.applied(in)-before >= sent.Load() }); err != nil {
		return 0, 0, fmt.Errorf("%d of %d events applied: %w", b.applied(in)-before, sent.Load(), err)
	}
	return sent.Load(), time.Since(begun), nil
}

// probe stores a block every few milliseconds and looks for it until it is
// found.
func probe(ctx context.Context, p *publish.Publisher, space *shard.Space, visible *latencies) {
	rng := rand.New(rand.NewPCG(7, 7))
	var found shard.Result
	for ctx.Err() == nil {
		block := []uint64{rng.Uint64()}
		begun := time.Now()
		if p.Stored(ctx, 0, event.Device, publish.Root(), block, block) != nil {
			return
		}
		for n := 0; n == 0 && ctx.Err() == nil; {
			space.Find(block, &found)
			if n, _ = found.Sum(event.Device); n == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
		if ctx.Err() == nil {
			visible.add(time.Since(begun).Nanoseconds())
		}
		time.Sleep(3 * time.Millisecond)
	}
}
