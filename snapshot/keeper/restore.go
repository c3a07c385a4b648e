package keeper

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/stream"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// Progress is how far a Restore is.
type Progress struct {
	begun       atomic.Int64 // Unix nanoseconds; 0: not yet
	ended       atomic.Bool
	done, total atomic.Uint64
	blocks      atomic.Uint64
}

// String says it in words; "" before and after.
func (p *Progress) String() string {
	if p.begun.Load() == 0 || p.ended.Load() {
		return ""
	}
	done, total, left := p.numbers()
	s := fmt.Sprintf("restoring snapshots: %d of %d bytes, %d blocks", done, total, p.blocks.Load())
	if left >= 0 {
		s += fmt.Sprintf(", %.0f s left", left)
	}
	return s
}

// numbers returns the bytes and the seconds that are left, -1 if not known.
func (p *Progress) numbers() (done, total uint64, left float64) {
	done, total = p.done.Load(), p.total.Load()
	if done == 0 || total == 0 {
		return done, total, -1
	}
	spent := time.Since(time.Unix(0, p.begun.Load())).Seconds()
	return done, total, spent / float64(done) * float64(total-min(done, total))
}

// Progress returns how far Restore is.
func (k *Keeper) Progress() *Progress { return &k.progress }

// Restore loads the newest snapshot of every stream that is whole into the Set,
// the streams beside each other, and returns where to start reading, by stream
// name. A stream without a usable one is read from its beginning.
func (k *Keeper) Restore(ctx context.Context) (map[string]ingest.Start, error) {
	infos, err := stream.List(ctx, k.js, k.cfg.Namespace)
	if err != nil && !errors.Is(err, stream.ErrUnsafe) {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	k.progress.begun.Store(time.Now().UnixNano())
	told := make(chan struct{})
	telling, stop := context.WithCancel(ctx)
	go func() { defer close(told); k.tell(telling) }()
	defer func() {
		k.progress.ended.Store(true)
		stop()
		<-told
	}()
	var mu sync.Mutex
	starts := make(map[string]ingest.Start)
	var failed error
	var working sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, info := range infos {
		working.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			start, ok, err := k.restore(ctx, info)
			mu.Lock()
			defer mu.Unlock()
			if ok {
				starts[info.Name] = start
			}
			failed = errors.Join(failed, err)
		})
	}
	working.Wait()
	return starts, failed
}

// tell logs the progress now and then.
func (k *Keeper) tell(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			done, total, left := k.progress.numbers()
			k.cfg.Log.Info("restoring snapshots", "bytes", done, "of", total, "blocks", k.progress.blocks.Load(), "seconds_left", left)
		case <-ctx.Done():
			return
		}
	}
}

// restore loads the newest usable snapshot of one stream. An error means that
// there is no point in going on.
func (k *Keeper) restore(ctx context.Context, info stream.Info) (start ingest.Start, ok bool, err error) {
	s, err := k.Store(ctx, info.Name)
	if err != nil {
		return start, false, err
	}
	names, err := store.Candidates(ctx, s)
	if err != nil {
		return start, false, err
	}
	if len(names) == 0 {
		return start, false, nil
	}
	sp, err := k.cfg.Set.Open(info.Space)
	if err != nil {
		return start, false, fmt.Errorf("snapshots: %w", err)
	}
	for _, name := range names {
		loaded, err := k.load(ctx, s, name, sp)
		if ctx.Err() != nil {
			return start, false, ctx.Err()
		}
		if err != nil {
			k.m.restores("refused")
			k.cfg.Log.Warn("a snapshot is not used", "stream", info.Name, "in", s.String(), "name", name, "error", err)
			if errors.Is(err, shard.ErrBudget) {
				break // older ones are of about the same size
			}
			continue
		}
		k.m.restores("loaded")
		m := &loaded.Meta
		k.cfg.Log.Info("snapshot restored", "stream", info.Name, "name", name, "position", m.Seq, "blocks", loaded.Footer.Blocks, "ranks", len(m.Ranks),
			"behind", info.LastSeq-min(info.LastSeq, m.Seq))
		if info.Created.Equal(m.Created) && info.FirstSeq > m.Seq+1 && info.LastSeq > m.Seq {
			k.cfg.Log.Warn("the stream no longer reaches back to the snapshot: what is missing is asked for from the publishers",
				"stream", info.Name, "first", info.FirstSeq, "snapshot", m.Seq)
		}
		return StartOf(m), true, nil
	}
	k.cfg.Log.Warn("no snapshot can be used: the stream is read from its beginning, and what it no longer has is asked for from the publishers",
		"stream", info.Name, "snapshots", len(names))
	return start, false, nil
}

func (k *Keeper) load(ctx context.Context, s store.Store, name string, sp *shard.Space) (*snapshot.Info, error) {
	f, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	p := &k.progress
	var done, total uint64
	info, err := snapshot.Restore(ctx, f, sp, k.cfg.Options, func(d, t uint64) {
		p.total.Add(t - total)
		p.done.Add(d - done)
		done, total = d, t
	})
	if err != nil { // it counts no more
		p.total.Add(-total)
		p.done.Add(-done)
	} else {
		p.blocks.Add(info.Footer.Blocks)
	}
	return info, errors.Join(err, f.Close())
}
