package ingest

import (
	"context"
	"errors"
	"fmt"
)

// ErrNoStream is returned for a stream that is not read.
var ErrNoStream = errors.New("the stream is not read")

// Cut calls at while no event of the stream's space is on its way from a partition
// to the index: all before is given to it, and nothing after. It returns where
// to start so as to go on from there, exactly: the ranks' ids are of that
// moment, and Seq is not beyond it. at must be quick, as reading waits for it.
//
// Then Cut calls begun, which returns when the index has applied what was given
// to it before at: only then is known what it refused.
//
// After Close it says what the index has in the end.
func (in *Ingest) Cut(ctx context.Context, stream string, at func() error, begun func()) (Start, error) {
	r := in.reader(stream)
	if r == nil {
		return Start{}, fmt.Errorf("%w: %s", ErrNoStream, stream)
	}
	list := make([][]cutRank, len(r.partitions))
	resume, err := in.pause(ctx, r.group, func(i int, l *partition) { list[i] = l.positions(r.source) })
	if err != nil {
		return Start{}, fmt.Errorf("ingest: pausing for a snapshot: %w", err)
	}
	p := r.window.progress()
	r.mu.Lock()
	start := Start{Seq: p.pos + 1, Created: r.mu.created, Stored: p.stored}
	r.mu.Unlock()
	err = at()
	resume()
	if err != nil {
		return Start{}, err
	}
	begun()
	for _, ranks := range list {
		for _, k := range ranks {
			// What was refused since the pause may have been given before it.
			s := k.rank.status()
			k.RankPosition.Incomplete = k.RankPosition.Incomplete || s.Blocks.Refused != k.refused || s.UnknownParents != k.unknown
			start.Ranks = append(start.Ranks, k.RankPosition)
		}
	}
	return start, nil
}

// cutRank is a rank's position, and what the index had refused of it by then.
type cutRank struct {
	RankPosition
	rank    *rank
	refused int
	unknown uint64
}

// positions returns how far the partition's ranks have got whose events are in the stream.
// Only the partition calls it, or who knows it paused.
func (l *partition) positions(of *source) []cutRank {
	var list []cutRank
	for k, r := range l.mu.ranks {
		pos, known := r.follow.Position()
		if !known || l.source(k.worker) != of {
			continue
		}
		s := r.status()
		pos.Incomplete = pos.Incomplete || s.Incomplete
		list = append(list, cutRank{
			RankPosition: RankPosition{k.worker, k.dpRank, pos}, rank: r, refused: s.Blocks.Refused, unknown: s.UnknownParents,
		})
	}
	return list
}

// pause has every partition of the group call f and wait for resume. A partition that has
// stopped waits for ever: f is called for it.
func (in *Ingest) pause(ctx context.Context, g *group, f func(i int, l *partition)) (resume func(), err error) {
	goOn := make(chan struct{})
	paused := make([]chan struct{}, len(g.partitions))
	for i, l := range g.partitions {
		at := make(chan struct{})
		paused[i] = at
		select {
		case l.inbox <- func(context.Context) {
			f(i, l)
			close(at)
			<-goOn
		}:
		case <-l.stopped:
		case <-ctx.Done():
			close(goOn)
			return nil, ctx.Err()
		}
	}
	for i, l := range g.partitions {
		select {
		case <-paused[i]:
		case <-l.stopped: // it will not take what is in its inbox any more
			f(i, l)
		case <-ctx.Done():
			close(goOn)
			return nil, ctx.Err()
		}
	}
	return func() { close(goOn) }, nil
}
