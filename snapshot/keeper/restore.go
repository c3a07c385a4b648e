package keeper

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// restoreAll loads the newest snapshot of every stream that is whole into the Set,
// but for the streams in have, the streams beside each other, and returns where to
// start reading, by stream name. A stream without a usable one is read from its
// beginning. Of a space of several streams the first one's is loaded, as only an empty
// index takes one: readers take up the others (Reload).
func (k *Keeper) restoreAll(ctx context.Context, have map[string]ingest.Start) (map[string]ingest.Start, error) {
	infos, err := stream.List(ctx, k.js, k.cfg.Namespace)
	if err != nil && !errors.Is(err, stream.ErrUnsafe) {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	k.cfg.Progress.Begin(startup.Restoring)
	var mu sync.Mutex
	starts := make(map[string]ingest.Start)
	var working sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, info := range infos {
		if _, ok := have[info.Name]; ok || !k.cfg.reads(&info) || k.cfg.Share.Of == 0 && info.Partition > 0 {
			continue
		}
		working.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			var start ingest.Start
			var ok bool
			err := askAgain(ctx, func() (err error) { start, ok, err = k.restore(ctx, info); return err })
			mu.Lock()
			defer mu.Unlock()
			if ok {
				starts[info.Name] = start
			}
			if err != nil && ctx.Err() == nil {
				k.m.restores("failed")
				k.cfg.Log.Error("no snapshot is restored: the stream is read from its beginning, and what it no longer has is asked for from the publishers",
					"stream", info.Name, "error", err)
			}
		})
	}
	working.Wait()
	return starts, ctx.Err()
}

// A store that does not answer is asked again for so long: a cluster that has just come back elects the leader of
// each of its buckets, and to do without a snapshot may be to ask every publisher for all that it holds.
const (
	askWait  = 15 * time.Second
	askPause = 500 * time.Millisecond
)

// askAgain calls f, and for askWait again as long as it fails because the server does not answer.
func askAgain(ctx context.Context, f func() error) error {
	for began := time.Now(); ; {
		err := f()
		if !stream.Unanswered(err) || time.Since(began) > askWait {
			return err
		}
		select {
		case <-time.After(askPause):
		case <-ctx.Done():
			return err
		}
	}
}

// restore loads the newest usable snapshot of one stream. An error means that it
// is not known whether there is one: each stream stands alone, and no snapshot
// keeps its replica from serving.
func (k *Keeper) restore(ctx context.Context, info stream.Info) (start ingest.Start, ok bool, err error) {
	s, err := k.Store(ctx, info.Name)
	if err != nil {
		return start, false, err
	}
	found, err := k.find(ctx, s, info.Name)
	if err != nil {
		return start, false, err
	}
	if len(found) == 0 {
		return start, false, nil
	}
	sp, err := k.cfg.Set.Open(info.Space)
	if err != nil {
		return start, false, fmt.Errorf("snapshots: %w", err)
	}
	for i := range found {
		f := &found[i]
		loaded, err := k.load(ctx, s, f, &info, sp)
		if ctx.Err() != nil {
			return start, false, ctx.Err()
		}
		if err != nil {
			k.refused(s, info.Name, f, err)
			if errors.Is(err, shard.ErrBudget) {
				break // older ones are of about the same size
			}
			continue
		}
		k.m.restores("loaded")
		m := &loaded.Meta
		k.cfg.Log.Info("snapshot restored", "stream", info.Name, "name", f.Name, "position", m.Seq, "blocks", loaded.Footer.Blocks, "ranks", len(m.Ranks),
			"behind", info.LastSeq-min(info.LastSeq, m.Seq))
		if info.Created.Equal(m.Created) && info.FirstSeq > m.Seq+1 && info.LastSeq > m.Seq {
			k.cfg.Log.Warn("the stream no longer reaches back to the snapshot: what is missing is asked for from the publishers",
				"stream", info.Name, "first", info.FirstSeq, "snapshot", m.Seq)
		}
		return StartOf(m), true, nil
	}
	k.cfg.Log.Warn("no snapshot can be used: the stream is read from its beginning, and what it no longer has is asked for from the publishers",
		"stream", info.Name, "snapshots", len(found))
	return start, false, nil
}

func (k *Keeper) load(ctx context.Context, s store.Store, which *store.Found, of *stream.Info, sp *shard.Space) (*snapshot.Info, error) {
	f, err := s.Open(ctx, which.Name)
	if err != nil {
		return nil, err
	}
	p := k.cfg.Progress
	var done, total, blocks uint64
	accept := func(info *snapshot.Info) error {
		if err := check(which, info, of.Name, sp.Key()); err != nil {
			return err
		}
		return k.recent(of, &info.Meta)
	}
	info, err := snapshot.Restore(ctx, f, sp, k.cfg.Options, accept, func(d, t, b uint64) {
		p.Read(d-done, t-total)
		p.Loaded(b - blocks)
		done, total, blocks = d, t, b
	})
	if err != nil { // it counts no more
		p.Read(-done, -total)
		p.Loaded(-blocks)
	}
	return info, errors.Join(err, f.Close())
}
