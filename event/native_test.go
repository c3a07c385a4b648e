package event

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func randomBatch(rng *rand.Rand) *Batch {
	word := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	hashes := func(n int) []uint64 {
		var h []uint64
		for range n {
			h = append(h, word())
		}
		return h
	}
	b := &Batch{
		Space:  Space{Model: strings.Repeat("m", rng.IntN(200)), BlockSize: 1 + rng.Uint32N(1024), Group: strings.Repeat("g", rng.IntN(3))},
		Worker: word(), Incarnation: word(), Published: int64(rng.Uint64()), CountCopies: rng.IntN(2) == 0,
	}
	for range rng.IntN(8) {
		ev := Event{Kind: Kind(1 + rng.IntN(3)), Tier: Tier(rng.IntN(NumTiers)), DPRank: uint32(word()), ID: word(), Incomplete: rng.IntN(4) == 0}
		n := rng.IntN(20)
		switch ev.Kind {
		case Stored:
			ev.Engine = hashes(n)
			if rng.IntN(3) > 0 {
				ev.Local = hashes(n)
			}
			if rng.IntN(2) == 0 {
				ev.HasParent, ev.Parent = true, word()
			}
		case Removed:
			ev.Engine = hashes(n)
		case Cleared:
			ev.AllTiers = rng.IntN(2) == 0
		}
		if ev.Kind != Cleared && rng.IntN(3) == 0 {
			ev.Group, ev.HasParent, ev.Parent, ev.Local = uint8(rng.IntN(MaxCacheGroups)), false, 0, nil
		}
		b.Events = append(b.Events, ev)
	}
	return b
}

// same reports whether two batches say the same, an empty slice being a nil one.
func same(a, b *Batch) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

func TestNativeRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var d Decoder
	for range 3000 {
		b := randomBatch(rng)
		msg := AppendBatch([]byte("before"), b)[6:]
		if len(msg) != EncodedSize(b) {
			t.Fatalf("%d bytes, EncodedSize says %d", len(msg), EncodedSize(b))
		}
		most := HeaderSize(b)
		for i := range b.Events {
			most += MaxEventSize(&b.Events[i])
		}
		if len(msg) > most {
			t.Fatalf("%d bytes, the sum of MaxEventSize says at most %d", len(msg), most)
		}
		got, err := d.Decode(msg)
		if err != nil {
			t.Fatal(err)
		}
		if !same(b, got) {
			t.Fatalf("decoded %+v\nwant    %+v", got, b)
		}
	}
}

func TestDecodeAnyTellsNativeMessages(t *testing.T) {
	var d Decoder
	got, err := d.DecodeAny(AppendBatch(nil, example()))
	if err != nil || len(got) != 1 || !same(&got[0], example()) || got[0].Blocks() != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := d.DecodeAny(unhex(t, "4b56")); !errors.Is(err, ErrTruncated) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestHeartbeatRoundTrip(t *testing.T) {
	b := &Batch{Space: Space{Model: "m", BlockSize: 1}, Worker: 1 << 63, Incarnation: 3, Published: -1,
		Last: []Position{{DPRank: 0, ID: 1<<64 - 1}, {DPRank: 1<<32 - 2, ID: 0, Incomplete: true}, {DPRank: 3, ID: 4}}}
	msg := AppendHeartbeat(nil, b)
	if len(msg) != EncodedSize(b) {
		t.Errorf("%d bytes, EncodedSize says %d", len(msg), EncodedSize(b))
	}
	var d Decoder
	got, err := d.Decode(msg)
	if err != nil || !same(b, got) {
		t.Errorf("decoded %+v, %v", got, err)
	}
	if got := AppendBatch(nil, b); got != nil {
		t.Errorf("a heartbeat is encoded as a batch: %x", got)
	}
	if got := AppendHeartbeat(nil, example()); got != nil {
		t.Errorf("a batch is encoded as a heartbeat: %x", got)
	}
}

func TestDecodedBatchSharesNothingWithTheMessage(t *testing.T) {
	msg := AppendBatch(nil, example())
	var d Decoder
	got, err := d.Decode(msg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range msg {
		msg[i] = 0xff
	}
	if !reflect.DeepEqual(got, example()) {
		t.Errorf("overwriting the message changed the batch to %+v", got)
	}
}

func TestCheckRefusesWhatHasNoEncoding(t *testing.T) {
	for name, breakIt := range map[string]func(*Batch){
		"block size 0":           func(b *Batch) { b.Space.BlockSize = 0 },
		"block size 1025":        func(b *Batch) { b.Space.BlockSize = 1025 },
		"long model":             func(b *Batch) { b.Space.Model = strings.Repeat("x", MaxName+1) },
		"long group":             func(b *Batch) { b.Space.Group = strings.Repeat("x", MaxName+1) },
		"events and positions":   func(b *Batch) { b.Last = []Position{{}} },
		"no kind":                func(b *Batch) { b.Events[0].Kind = 0 },
		"kind 4":                 func(b *Batch) { b.Events[0].Kind = 4 },
		"tier 4":                 func(b *Batch) { b.Events[1].Tier = NumTiers },
		"removed with parent":    func(b *Batch) { b.Events[1].HasParent = true },
		"removed with local":     func(b *Batch) { b.Events[1].Local = []uint64{1} },
		"removed on all tiers":   func(b *Batch) { b.Events[1].AllTiers = true },
		"cleared with blocks":    func(b *Batch) { b.Events[1].Kind = Cleared },
		"too few local hashes":   func(b *Batch) { b.Events[0].Engine = []uint64{1, 2} },
		"group 16":               func(b *Batch) { b.Events[1].Group = MaxCacheGroups },
		"content in a group":     func(b *Batch) { b.Events[0].Group = 1 },
		"a group is cleared":     func(b *Batch) { b.Events[1] = Event{Kind: Cleared, Group: 1} },
		"more local than engine": func(b *Batch) { b.Events[0].Engine = nil },
	} {
		b := example()
		breakIt(b)
		if err := b.Check(); !errors.Is(err, ErrEncode) {
			t.Errorf("%s: Check says %v", name, err)
		}
		if got := AppendBatch(nil, b); got != nil {
			t.Errorf("%s: encoded as %x", name, got)
		}
	}
	if err := example().Check(); err != nil {
		t.Error(err)
	}
}

func TestNativeDecoderRefuses(t *testing.T) {
	edit := func(at int, v byte) []byte {
		msg := AppendBatch(nil, example())
		msg[at] = v
		return msg
	}
	heartbeat := AppendHeartbeat(nil, &Batch{Space: Space{BlockSize: 1}, Last: []Position{{ID: 5, Incomplete: true}}})
	const head = 32 + 4 + 4 // offset of the first event
	for name, c := range map[string]struct {
		msg  []byte
		want error
	}{
		"nothing":              {nil, ErrTruncated},
		"another magic":        {edit(2, 'B'), ErrFormat},
		"version 2":            {edit(3, 2), ErrVersion},
		"type 3":               {edit(4, 3), ErrVersion},
		"unknown message flag": {edit(5, 2), ErrVersion},
		"block size 0":         {edit(6, 0), ErrMalformed},
		"unknown rank flag":    {append(heartbeat[:len(heartbeat)-1:len(heartbeat)-1], 2), ErrVersion},
		"no rank flag":         {heartbeat[:len(heartbeat)-1], ErrTruncated},
		"model name too long":  {slices.Concat(AppendBatch(nil, example())[:32], []byte{0x81, 0x08}, bytes.Repeat([]byte("m"), MaxName+1), AppendBatch(nil, example())[34:]), ErrMalformed},
		"kind 0":               {edit(head, 0x54), ErrMalformed},
		"more events":          {edit(head-4, 200), ErrTruncated},
		"fewer events":         {edit(head-4, 1), ErrMalformed},
		"more blocks":          {edit(head+3, 100), ErrTruncated},
		"byte after the end":   {append(AppendBatch(nil, example()), 0), ErrMalformed},
		"rank above 32 bits":   {append(AppendBatch(nil, example())[:head+1], 0xff, 0xff, 0xff, 0xff, 0xff, 1, 5, 1, 0, 0, 0, 0), ErrMalformed},
		"number above 64 bits": {append(AppendBatch(nil, example())[:head+1], bytes.Repeat([]byte{0xff}, 12)...), ErrMalformed},
	} {
		var d Decoder
		if b, err := d.Decode(c.msg); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v (batch %+v)", name, err, c.want, b)
		} else if Reason(err) != Reason(c.want) {
			t.Errorf("%s: reason %q", name, Reason(err))
		}
	}
}

func TestNativeTruncatedAtEveryOffset(t *testing.T) {
	msg := AppendBatch(nil, example())
	var d Decoder
	for n := range msg {
		if _, err := d.Decode(msg[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("first %d bytes: %v", n, err)
		}
	}
}

func TestNativeFlippedBitsGiveAnErrorOrAValidBatch(t *testing.T) {
	msg := AppendBatch(nil, example())
	var d Decoder
	for i := range 8 * len(msg) {
		msg[i/8] ^= 1 << (i % 8)
		if b, err := d.Decode(msg); err == nil && b.Check() != nil {
			t.Errorf("bit %d flipped: decoded to %+v, which Check refuses", i, b)
		}
		msg[i/8] ^= 1 << (i % 8)
	}
}

func TestNativeDecodingDoesNotAllocate(t *testing.T) {
	var msgs [][]byte
	for _, model := range []string{"one", "two"} {
		b := bigBatch()
		b.Space.Model = model
		msgs = append(msgs, AppendBatch(nil, b))
	}
	var d Decoder
	if n := testing.AllocsPerRun(100, func() {
		for _, msg := range msgs {
			if _, err := d.Decode(msg); err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	buf := make([]byte, 0, 2*len(msgs[0]))
	b := bigBatch()
	if n := testing.AllocsPerRun(100, func() { buf = AppendBatch(buf[:0], b) }); n != 0 {
		t.Errorf("encoding: %v allocations", n)
	}
}

func TestDecoderForgetsNames(t *testing.T) {
	var d Decoder
	for i := range 3 * maxNames {
		if got := d.name(fmt.Append(nil, i)); got != fmt.Sprint(i) {
			t.Fatalf("name %d is %q", i, got)
		}
		if len(d.names) > maxNames {
			t.Fatalf("%d names kept", len(d.names))
		}
	}
}

func TestParseTier(t *testing.T) {
	for name, want := range map[string]Tier{
		"GPU": Device, "gpu": Device, "DEVICE": Device, "device": Device,
		"CPU": HostPinned, "cpu_pinned": HostPinned, "CPU_TIER1": HostPinned, "host_pinned": HostPinned,
		"CPU_TIER2": Disk, "DISK": Disk, "NVMe": Disk, "STORAGE": Disk,
		"EXTERNAL": External, "NETWORK": External, "REMOTE": External, "Shared": External,
	} {
		if got, ok := ParseTier([]byte(name)); !ok || got != want {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
	}
	for _, name := range []string{"", "TAPE", "GPU ", "a name longer than any tier's"} {
		if got, ok := ParseTier([]byte(name)); ok {
			t.Errorf("%q is %v", name, got)
		}
	}
	for tier := range Tier(NumTiers) {
		if got, ok := ParseTier([]byte(tier.String())); !ok || got != tier {
			t.Errorf("%v is read back as %v", tier, got)
		}
	}
}

func TestWorkerID(t *testing.T) {
	for name, want := range map[string]uint64{
		"7": 7, "18446744073709551615": 1<<64 - 1,
		"": 0x2d06800538d394c2, // XXH3-64 of nothing
	} {
		if got := WorkerID(name); got != want {
			t.Errorf("%q: %x, want %x", name, got, want)
		}
	}
	if WorkerID("node-1") == WorkerID("node-2") || WorkerID("18446744073709551616") == 0 {
		t.Error("names collide")
	}
}

// bigBatch is a typical message: 32 stores of 64 blocks, and as many removals.
func bigBatch() *Batch {
	b := &Batch{Space: Space{Model: "meta-llama/Llama-3.1-70B-Instruct", BlockSize: 16, Group: "default"}, Worker: 12345, Incarnation: 1 << 60, Published: 1e18}
	id := uint64(1e6)
	for range 32 {
		st := Event{Kind: Stored, HasParent: true, Parent: 1 << 63, ID: id}
		rm := Event{Kind: Removed, ID: id + 1}
		id += 2
		for i := range uint64(64) {
			st.Engine = append(st.Engine, id*i*0x9e3779b97f4a7c15)
			st.Local = append(st.Local, id*i*0xc2b2ae3d27d4eb4f)
		}
		rm.Engine = st.Engine
		b.Events = append(b.Events, st, rm)
	}
	return b
}

func BenchmarkNativeDecode(b *testing.B) {
	batch := bigBatch()
	msg := AppendBatch(nil, batch)
	var d Decoder
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if _, err := d.Decode(msg); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(batch.Blocks())*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkNativeDecodeSmall decodes events of one block each, the worst case
// per byte.
func BenchmarkNativeDecodeSmall(b *testing.B) {
	batch := bigBatch()
	batch.Events = nil
	for i := range uint64(256) {
		batch.Events = append(batch.Events, Event{Kind: Removed, ID: 100 + i, Engine: []uint64{i}})
	}
	msg := AppendBatch(nil, batch)
	var d Decoder
	b.ReportAllocs()
	b.SetBytes(int64(len(msg)))
	for b.Loop() {
		if _, err := d.Decode(msg); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNativeEncode(b *testing.B) {
	batch := bigBatch()
	var buf []byte
	b.ReportAllocs()
	b.SetBytes(int64(EncodedSize(batch)))
	for b.Loop() {
		buf = AppendBatch(buf[:0], batch)
	}
}

func FuzzNativeDecode(f *testing.F) {
	f.Add(AppendBatch(nil, example()))
	f.Add(AppendHeartbeat(nil, &Batch{Space: Space{BlockSize: 1}, Last: []Position{{DPRank: 1, ID: 2}, {ID: 5, Incomplete: true}}}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var d, d2 Decoder
		b, err := d.Decode(msg)
		if err != nil {
			return
		}
		again := AppendBatch(nil, b)
		if msg[4] == typeHeartbeat {
			again = AppendHeartbeat(nil, b)
		}
		b2, err := d2.Decode(again)
		if err != nil {
			t.Fatalf("%+v: decoding its encoding: %v", b, err)
		}
		if !same(b, b2) {
			t.Fatalf("%+v became %+v", b, b2)
		}
	})
}
