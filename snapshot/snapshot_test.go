package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/shard"
)

var testSpace = event.Space{Model: "m", BlockSize: 16, Group: "g"}

func openSpace(t testing.TB, cfg shard.Config) *shard.Space {
	t.Helper()
	set := shard.New(cfg)
	t.Cleanup(set.Close)
	sp, err := set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

func apply(t testing.TB, sp *shard.Space, op coretest.Op) core.Outcome {
	t.Helper()
	op.Event.DPRank = op.Holder % 2
	b := &event.Batch{Space: testSpace, Worker: uint64(op.Holder) / 2, CountCopies: op.Count, Events: []event.Event{op.Event}}
	out, err := sp.ApplyWait(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// history returns a generator's operations that a space takes.
func history(g coretest.Generator, seed uint64) []coretest.Op {
	var ops []coretest.Op
	for _, op := range g.History(seed) {
		if op.Event.Kind != 0 {
			ops = append(ops, op)
		}
	}
	return ops
}

// meta describes a snapshot of the space with all ranks in it, and one more
// that never stored anything.
func meta(sp *shard.Space) Meta {
	m := Meta{Space: Space(testSpace), Stream: "s", Seq: 7, Written: time.Unix(1e9, 0).UTC(), Writer: "w", Fence: 3}
	for _, r := range sp.Ranks() {
		m.Ranks = append(m.Ranks, Publisher{Worker: r.Worker, DPRank: r.DPRank, Position: follow.Position{Incarnation: r.Worker + 1<<60, LastID: 5, Ended: []uint64{1 << 63}}})
	}
	m.Ranks = append(m.Ranks, Publisher{Worker: 1 << 63, Position: follow.Position{LastID: 9, Incomplete: true}})
	return m
}

// write writes a snapshot of the space as it is.
func write(t testing.TB, sp *shard.Space, opts Options) ([]byte, *Footer) {
	t.Helper()
	w := NewWriter(sp, opts)
	if err := w.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	f, err := w.Write(t.Context(), &buf, meta(sp))
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), f
}

func digest(t testing.TB, sp *shard.Space) uint64 {
	t.Helper()
	d, err := sp.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A restored snapshot is the space of the moment of Begin, by digest, and goes
// on as the original does; its footer says what it has.
func TestARestoredSnapshotGoesOn(t *testing.T) {
	for _, g := range coretest.Generators() {
		if g.Name == "deep" {
			continue
		}
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", g.Name, seed), func(t *testing.T) {
				t.Parallel()
				rng := rand.New(rand.NewPCG(seed, 31))
				from := openSpace(t, shard.Config{Shards: 1 + rng.IntN(3)})
				to := openSpace(t, shard.Config{Shards: 1 + rng.IntN(3)})
				ops := history(g, seed)
				at := len(ops)/2 + rng.IntN(len(ops)/2)
				for _, op := range ops[:at] {
					apply(t, from, op)
				}
				want := digest(t, from)
				m := meta(from)
				w := NewWriter(from, Options{ChunkBytes: 1 + rng.IntN(5000), Slice: 1 + rng.IntN(50)})
				if err := w.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				var buf bytes.Buffer
				var writing sync.WaitGroup
				var footer *Footer
				writing.Go(func() {
					var err error
					if footer, err = w.Write(t.Context(), &buf, m); err != nil {
						t.Error(err)
					}
				})
				for _, op := range ops[at:] { // beside the writing
					apply(t, from, op)
				}
				writing.Wait()
				if t.Failed() {
					return
				}
				if footer.Digest != want {
					t.Errorf("the footer's digest is %x, the space's was %x", footer.Digest, want)
				}
				info, err := Verify(bytes.NewReader(buf.Bytes()))
				if err != nil {
					t.Fatal(err)
				}
				if info.Footer != *footer || info.Bytes != uint64(buf.Len()) || info.Meta.Seq != 7 || len(info.Meta.Ranks) != len(m.Ranks)-1 || len(info.Meta.Idle) != 1 {
					t.Errorf("verified %+v, written %+v", info, footer)
				}
				if _, err := Restore(t.Context(), bytes.NewReader(buf.Bytes()), to, Options{MaxBuffered: 1 << 10}, nil, nil); err != nil {
					t.Fatal(err)
				}
				if got := digest(t, to); got != want {
					t.Fatalf("digest %x after the restore, want %x", got, want)
				}
				for _, op := range ops[at:] {
					apply(t, to, op)
				}
				if a, b := digest(t, from), digest(t, to); a != b {
					t.Fatalf("digests %x and %x in the end", a, b)
				}
			})
		}
	}
}

// small returns a snapshot of everything that there is, of a few kilobytes.
func small(t testing.TB) ([]byte, uint64) {
	sp := openSpace(t, shard.Config{Shards: 2})
	for _, op := range history(coretest.Generators()[1], 3) {
		apply(t, sp, op)
	}
	hash := uint64(1)
	ev := event.Event{Kind: event.Stored}
	for i := range uint64(50) { // hashes that follow from the blocks
		ev.Local = append(ev.Local, i*0x9E3779B97F4A7C15)
		if i > 0 {
			hash = blockhash.NextSequenceHash(hash, ev.Local[i])
		}
		ev.Engine = append(ev.Engine, hash)
	}
	apply(t, sp, coretest.Op{Holder: 9, Event: ev})
	data, _ := write(t, sp, Options{ChunkBytes: 300})
	return data, digest(t, sp)
}

// Every change of one byte, every truncation and anything behind the end is
// refused, and nothing is loaded.
func TestDamageIsRefused(t *testing.T) {
	data, want := small(t)
	to := openSpace(t, shard.Config{Shards: 2})
	try := func(what string, damaged []byte) {
		t.Helper()
		if _, err := Restore(t.Context(), bytes.NewReader(damaged), to, Options{}, nil, nil); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	damaged := bytes.Clone(data)
	for i := range data {
		damaged[i] ^= byte(1 + rng.IntN(255))
		try(fmt.Sprintf("byte %d of %d changed", i, len(data)), damaged)
		damaged[i] = data[i]
		try(fmt.Sprintf("cut to %d of %d bytes", i, len(data)), data[:i])
	}
	try("a byte more", append(bytes.Clone(data), 0))
	try("twice", append(bytes.Clone(data), data...))
	if n := len(to.Ranks()); n != 0 {
		t.Fatalf("%d ranks of damaged snapshots", n)
	}
	if _, err := Restore(t.Context(), bytes.NewReader(data), to, Options{}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := digest(t, to); got != want {
		t.Errorf("digest %x, want %x", got, want)
	}
}

// A newer format is refused by number, and so is one that never was.
func TestVersions(t *testing.T) {
	data, _ := small(t)
	for v, want := range map[uint16]string{Version + 1: "use the release that wrote it", oldestVersion - 1: "the oldest that it reads"} {
		binary.LittleEndian.PutUint16(data[8:], v)
		if _, err := Check(bytes.NewReader(data)); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), want) {
			t.Errorf("version %d: %v", v, err)
		}
	}
}

// stuck is storage that takes nothing until it is told to.
type stuck struct{ free chan struct{} }

func (s stuck) Write(p []byte) (int, error) {
	<-s.free
	return len(p), nil
}

// A writer that the index outruns gives up within its memory; the index goes on.
func TestSlowStorageEndsTheSnapshot(t *testing.T) {
	sp := openSpace(t, shard.Config{Shards: 2})
	store := func(worker uint32, first uint64) {
		ev := event.Event{Kind: event.Stored}
		for i := range uint64(64) {
			ev.Engine, ev.Local = append(ev.Engine, first+i), append(ev.Local, first+i)
		}
		apply(t, sp, coretest.Op{Holder: worker, Event: ev})
	}
	for i := range uint64(200) {
		store(uint32(i%8), 1000*i)
	}
	w := NewWriter(sp, Options{MaxBuffered: 20_000})
	if err := w.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := stuck{make(chan struct{})}
	ended := make(chan error)
	go func() {
		_, err := w.Write(t.Context(), s, meta(sp))
		ended <- err
	}()
	for i := range uint64(200) { // every chain changes: all would be kept
		store(uint32(i%8)+8, 1000*i)
	}
	close(s.free)
	if err := <-ended; !errors.Is(err, ErrTooSlow) {
		t.Fatalf("the writer ended with %v", err)
	}
	if data, f := write(t, sp, Options{}); f.Held[0] != 400*64 || len(data) == 0 { // the next one can be
		t.Errorf("the next snapshot has %+v", f)
	}
}

type failing struct {
	after int
	err   error
}

func (f *failing) Write(p []byte) (int, error) {
	if f.after -= len(p); f.after < 0 {
		return 0, f.err
	}
	return len(p), nil
}

// An error of the storage, anywhere, ends the snapshot with it.
func TestStorageErrorsEndTheSnapshot(t *testing.T) {
	sp := openSpace(t, shard.Config{Shards: 2})
	for _, op := range history(coretest.Generators()[1], 3) {
		apply(t, sp, op)
	}
	data, _ := write(t, sp, Options{ChunkBytes: 300})
	full := errors.New("no space left on device")
	for after := 0; after < len(data)-50; after += 97 {
		w := NewWriter(sp, Options{ChunkBytes: 300})
		if err := w.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(t.Context(), &failing{after, full}, meta(sp)); !errors.Is(err, full) {
			t.Fatalf("after %d bytes: %v", after, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := NewWriter(sp, Options{})
	if err := w.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(ctx, io.Discard, meta(sp)); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled one: %v", err)
	}
}

// resum makes the checksums of a file right, as far as it can be read, so that
// what is in it is looked at.
func resum(data []byte) []byte {
	if len(data) < headerSize {
		return data
	}
	data = bytes.Clone(data)
	copy(data, header())
	sum := xxh3.Hash(data[:headerSize])
	for at := headerSize; len(data)-at >= chunkHeader+sumSize; {
		n := uint64(binary.LittleEndian.Uint32(data[at+4:])) + uint64(binary.LittleEndian.Uint32(data[at+12:]))
		if n > uint64(len(data)-at-chunkHeader-sumSize) {
			break
		}
		end := at + chunkHeader + int(n)
		sum = xxh3.HashSeed(data[at:end], sum)
		binary.LittleEndian.PutUint64(data[end:], sum)
		at = end + sumSize
	}
	return data
}

// FuzzRestore: whatever the bytes, a restore gives all or nothing, and does not
// panic; what it takes can be verified, and what verifies it takes.
func FuzzRestore(f *testing.F) {
	data, _ := small(f)
	f.Add(data)
	f.Add(data[:200])
	f.Add(header())
	f.Fuzz(func(t *testing.T, data []byte) {
		data = resum(data)
		set := shard.New(shard.Config{Shards: 2, MemoryBudget: 64 << 20})
		defer set.Close()
		sp, err := set.Open(testSpace)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = Restore(context.Background(), bytes.NewReader(data), sp, Options{}, nil, nil); err != nil && len(sp.Ranks()) > 0 {
			t.Fatalf("%d ranks after %v", len(sp.Ranks()), err)
		}
		if info, verr := Verify(bytes.NewReader(data)); verr == nil && err == nil {
			if got := digest(t, sp); got != info.Footer.Digest {
				t.Fatalf("digest %x, the file says %x", got, info.Footer.Digest)
			}
		}
	})
}

// TestCraftedRunsTakeWhatTheyAre: a chunk says with a few bytes that a rank has all of a
// run on a lower tier. With many ranks it takes memory for what stands in it, not for
// each block of each of them.
func TestCraftedRunsTakeWhatTheyAre(t *testing.T) {
	const blocks, ranks = 4000, 4000
	run := core.Piece{Number: 1, Local: make([]uint64, blocks), Engine: make([]uint64, blocks)}
	to := make([]core.Holder, ranks)
	for h := range to {
		to[h] = core.Holder(h)
		run.Exceptions = append(run.Exceptions, core.PieceException{Holder: core.Holder(h),
			Hashes: []core.PieceHash{{Shared: true, Copies: [event.NumTiers]uint32{0, 1}, More: blocks - 1}}})
	}
	for i := range run.Local {
		run.Local[i], run.Engine[i] = uint64(i), uint64(i)<<32
	}
	var c chunk
	c.appendRun(&run, 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	runs, err := new(decoder).decodeRuns(&c, to)
	runtime.ReadMemStats(&after)
	if err != nil || len(runs) != 1 || !reflect.DeepEqual(runs[0].Exceptions, run.Exceptions) {
		t.Fatalf("%v; decoded otherwise than encoded: %t", err, err == nil)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 64*uint64(c.size()) {
		t.Errorf("%d bytes for a chunk of %d", n, c.size())
	}
	again := run.Exceptions[0]
	again.Hashes = append(again.Hashes, core.PieceHash{Shared: true, Pos: blocks - 1}) // a second time
	run.Exceptions = []core.PieceException{again}
	c = chunk{}
	c.appendRun(&run, 0)
	if _, err := new(decoder).decodeRuns(&c, to); !errors.Is(err, ErrDamaged) {
		t.Errorf("a shared hash that a rank has twice: %v", err)
	}
}

// A Writer that has not begun, or has written, says so; it neither panics nor writes half a snapshot.
func TestAWriterWritesOnce(t *testing.T) {
	sp := openSpace(t, shard.Config{Shards: 2})
	w := NewWriter(sp, Options{})
	w.Begun()
	if _, err := w.Write(t.Context(), io.Discard, Meta{}); err == nil {
		t.Error("written without a beginning")
	}
	if err := w.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Begin(t.Context()); err == nil {
		t.Error("begun twice")
	}
	if _, err := w.Write(t.Context(), io.Discard, meta(sp)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(t.Context(), io.Discard, meta(sp)); err == nil {
		t.Error("written twice")
	}
	w.Close()
}
