package pools

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// maxKey is how long a key may be; longer ones are no block's.
const maxKey = 4096

// list begins to read all keys of the store, beside the stream.
func (f *Follower) list(ctx context.Context) {
	f.listing, f.again, f.over, f.silent, f.waiting, f.waits = true, false, false, true, nil, 0
	lists := f.lists
	f.bodies.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, f.cfg.ListLimit)
		defer cancel()
		o, err := f.readKeys(ctx)
		lists <- listing{o, err}
	})
}

// readKeys reads what Mooncake's master answers to GET /get_all_keys: a key a line,
// of the tenant called default alone (0.3.13).
func (f *Follower) readKeys(ctx context.Context) (*objects, error) {
	at := strings.TrimRight(f.source.Keys, "/") + "/get_all_keys"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("listing the store's keys: %w", err)
	}
	answer, err := f.cfg.HTTP.Do(r)
	if err != nil {
		return nil, fmt.Errorf("listing the store's keys: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("listing the store's keys at %s: %s", at, answer.Status)
	}
	o := newObjects(f.source, f.cfg.MaxBlocks)
	lines := bufio.NewReaderSize(answer.Body, maxKey)
	for long := false; ; {
		line, more, err := lines.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			return o, nil
		case err != nil:
			return nil, fmt.Errorf("listing the store's keys at %s: %w", at, err)
		case more && !long:
			o.left.Foreign++
		case !more && !long && len(line) > 0:
			o.apply(event.Stored, line)
		}
		long = more
	}
}

// listed takes a list that was read, and what came meanwhile.
func (f *Follower) listed(ctx context.Context, l listing) error {
	f.listing = false
	now := time.Now()
	f.listPace.Later(now, now, f.cfg.RetryMin, f.cfg.RetryMax, 0)
	if l.err != nil || f.over {
		f.again = true
		if l.err == nil {
			return nil
		}
		if !f.stat.Readable || f.silent { // a connection stays when nobody is at its other end any more, or stands still
			f.hide("list", l.err.Error())
		} else {
			f.log.Warn("list", "a pool's keys cannot be listed", slog.Any("error", l.err))
		}
		return nil
	}
	f.stat.Lists++
	if f.objects != nil {
		was := f.objects.left
		l.objects.left.Room += was.Room
		l.objects.left.Parts += was.Parts
		l.objects.left.Foreign += was.Foreign
		l.objects.left.Events += was.Events
	}
	f.objects = l.objects
	waiting := f.waiting
	f.waiting = nil
	for _, m := range waiting {
		if _, _, err := f.changes(m.payload); err != nil {
			f.again = true // take has said so
			return nil
		}
	}
	clear(f.unplaced)
	if err := f.index.PoolKeep(ctx, f.name, f.objects.has); err != nil {
		return err
	}
	all := make([]uint64, 0, f.objects.whole)
	for hash := range f.objects.blocks {
		if f.objects.has(hash) {
			all = append(all, hash)
		}
	}
	if err := f.store(ctx, all); err != nil {
		return err
	}
	f.reveal()
	return nil
}
