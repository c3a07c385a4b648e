package zmqfeed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/engines/zmtp"
)

// This file reads the snapshots that engines give of all that they hold, as they are to come:
// vLLM's (vllm#57789) are one message, of the number of the last batch (-2: there is none to
// be had), the process and payloads as batches have; SGLang's (sglang#34407) are a header,
// pages of hashes, and an end. Either process names itself in its live messages as well.

const (
	processBytes = 16                     // vLLM's, behind the number
	epochMark    = "\x00sgl-kv-epoch="    // SGLang's, behind the topic
	barrierMark  = "\x00sgl-kv-snapshot=" // and behind that, of the batch where one was taken
	maxPages     = 1 << 16                // of vLLM's; each has 256 events
)

// snapshotRest is how many times as long as a snapshot took none is asked for after it: they
// are the dearest thing that can be asked of an engine.
const snapshotRest = 9

var (
	errNoSnapshot = errors.New("the engine has no snapshot")
	errRefused    = errors.New("the engine refuses to give a snapshot")
	errNotOurs    = errors.New("the snapshot is of another process than the stream, or of a point that the stream has passed")
	errNoAnswer   = errors.New("the answer is none to a request for a snapshot: is it the engine's snapshot_endpoint?")
)

// process is the name that a process gives itself, as the rank knows it.
func process(name []byte) uint64 { return max(1, xxh3.Hash(name)) } // 0: it has none

// named splits a live message's topic and number from the name of its process.
func named(topic, number []byte) (bare []byte, n, who uint64, ok bool) {
	switch len(number) {
	case 8:
	case 8 + processBytes:
		who = process(number[8:])
	default:
		return nil, 0, 0, false
	}
	if before, after, found := bytes.Cut(topic, []byte(epochMark)); found {
		epoch, _, _ := bytes.Cut(after, []byte(barrierMark))
		topic, who = before, process(epoch)
	}
	return topic, binary.BigEndian.Uint64(number), who, true
}

// snapshot is one that was read.
type snapshot struct {
	follow.Batch
	pages    [][]byte
	hashes   bool   // pages have hashes alone
	blocks   uint64 // that there are, where a header says so
	unplaced bool   // something of it has no place
	refused  bool   // there was no room for something
}

// batches decodes the pages, from the first.
func (p *snapshot) batches(dec *engine.Decoder) iter.Seq2[*event.Batch, error] {
	return func(yield func(*event.Batch, error) bool) {
		decode := dec.Decode
		if p.hashes {
			decode = dec.Placement
		}
		for _, page := range p.pages {
			b, err := decode(page)
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// snapshot asks the engine for all that it holds, and gives it to the rank.
func (s *session) snapshot(ctx context.Context) error {
	f := s.f
	sleep(ctx, time.Until(f.rested)) // what comes live meanwhile is in the snapshot
	began := time.Now()
	defer func() {
		now := time.Now()
		f.rested = now.Add(min(snapshotRest*now.Sub(began), f.cfg.ReplayPause))
	}()
	p, err := f.askSnapshot(ctx)
	if err == nil {
		err = f.readable(p)
	}
	if err == nil && s.broken.Load() {
		err = errBroken
	}
	if err == nil {
		taken := false
		p.Ref = p
		if f.Step(func(k *follow.Rank, st *follow.Step) { taken = k.Snapshot(st, &p.Batch) }); !taken {
			err = errNotOurs
		}
	}
	if err != nil {
		f.count(func(c *Stats) { c.SnapshotBad, c.SnapshotDown = c.SnapshotBad+1, true })
		return fmt.Errorf("snapshot at %s: %w", f.cfg.Snapshot, err)
	}
	f.count(func(c *Stats) { c.Snapshots, c.SnapshotDown = c.Snapshots+1, false })
	f.Step(func(k *follow.Rank, st *follow.Step) {
		k.Ended(st, follow.Result{Refused: p.refused, Unplaced: p.unplaced})
	})
	return nil
}

// readable decodes the snapshot once: one that cannot be read takes the place of nothing.
func (f *Feed) readable(p *snapshot) error {
	dec, err := engine.NewDecoder(f.cfg.Decoder)
	if err != nil {
		return err
	}
	var blocks uint64
	for b, err := range p.batches(dec) {
		if err != nil {
			return err
		}
		for i := range b.Events {
			blocks += uint64(len(b.Events[i].Engine))
		}
		p.unplaced = p.unplaced || b.Lost > 0
	}
	if p.hashes && blocks != p.blocks {
		return fmt.Errorf("%w: %d blocks, and its header says %d", event.ErrMalformed, blocks, p.blocks)
	}
	return nil
}

// commit has the handler put the snapshot in the place of all that came before.
func (f *Feed) commit(p *snapshot, sign follow.Sign) {
	f.forget()
	if sign != follow.NoSign {
		f.count(func(c *Stats) { c.Restarts[sign]++ })
	}
	unplaced, refused := f.h.Snapshot(p.Number, func(yield func(*event.Batch) bool) {
		for b, err := range p.batches(f.dec) {
			if err != nil { // it was decoded once
				return
			}
			for i := range b.Events {
				b.Events[i].Incomplete = p.hashes || p.unplaced
			}
			if !yield(b) {
				return
			}
		}
	})
	p.unplaced, p.refused = p.unplaced || unplaced, refused
	f.countLeft()
}

// askSnapshot asks for one in the words of either engine.
func (f *Feed) askSnapshot(ctx context.Context) (p *snapshot, err error) {
	err = f.converse(ctx, f.cfg.Snapshot, zmtp.Options{MaxMessage: f.cfg.MaxSnapshot, MaxFrames: maxPages}, func(conn *zmtp.Conn) error {
		for _, words := range []string{"snapshot", "snapshot-v1"} { // vLLM's takes any, SGLang's refuses the first
			if err = conn.WriteMessage(nil, []byte(words)); err != nil {
				return err
			}
			if p, err = f.readSnapshot(conn); !errors.Is(err, errRefused) {
				break
			}
		}
		return err
	})
	return p, err
}

// readSnapshot reads an answer.
func (f *Feed) readSnapshot(conn *zmtp.Conn) (*snapshot, error) {
	p := new(snapshot)
	for size, done := 0, false; !done; {
		if err := conn.SetReadDeadline(time.Now().Add(f.cfg.SnapshotIdle)); err != nil {
			return nil, err
		}
		var m zmtp.Message
		err := conn.ReadMessage(&m)
		if size += m.Size(); err == nil && size > f.cfg.MaxSnapshot {
			err = zmtp.ErrTooLarge
		}
		if err != nil {
			return nil, err
		}
		frames := make([][]byte, m.Len())
		for i := range frames {
			frames[i] = m.Frame(i)
		}
		if done, err = p.take(frames); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// take takes a message of the answer, which it keeps. It reports whether that was the last.
func (p *snapshot) take(frames [][]byte) (done bool, err error) {
	if len(frames) < 3 || len(frames[0]) != 0 {
		return false, errNoAnswer
	}
	kind, body, begun := string(frames[1]), frames[2], p.Process != 0
	switch {
	case len(kind) == 8 && len(body) == processBytes && !begun:
		last := int64(binary.BigEndian.Uint64(frames[1]))
		if last < -1 {
			return false, errNoSnapshot
		}
		p.Batch, p.pages = follow.Batch{Number: uint64(last), Process: process(body)}, frames[3:]
		return true, nil
	case kind == "header" && !begun:
		p.hashes = true
		return false, p.header(body)
	case kind == "chunk" && begun:
		p.pages = append(p.pages, body)
		return false, nil
	case kind == "end" && begun:
		return true, nil
	case kind == "error":
		return false, fmt.Errorf("%w: %.100q", errRefused, body)
	}
	return false, errNoAnswer
}

// header reads SGLang's.
func (p *snapshot) header(b []byte) error {
	epoch, next, blocks, err := engine.SnapshotHeader(b)
	if err != nil {
		return err
	}
	p.Batch, p.blocks = follow.Batch{Number: next - 1, Process: process(epoch)}, blocks
	return nil
}
