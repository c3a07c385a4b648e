package dump

import (
	"bytes"
	"context"
	"errors"
	"regexp"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

var space = event.Space{Model: "m", BlockSize: 16}

func open(t testing.TB) *shard.Space {
	t.Helper()
	set := shard.New(shard.Config{Shards: 2})
	t.Cleanup(set.Close)
	sp, err := set.Open(space)
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

func loadInto(sp *shard.Space, text []byte) (*Loader, error) {
	l := NewLoader(func(*Header) (*shard.Space, error) { return sp, nil }, nil)
	err := l.Read(context.Background(), bytes.NewReader(text))
	if err == nil {
		return l, l.Commit(context.Background())
	}
	l.Abort()
	return l, err
}

// small is a dump of two ranks, one with a chain of more than one line.
func small(t testing.TB, blocks int) (text []byte, digest uint64) {
	t.Helper()
	sp := open(t)
	for worker := range uint64(2) {
		var hashes []uint64
		for i := range blocks {
			hashes = append(hashes, uint64(i+1)*(worker+1))
		}
		b := event.Batch{Space: space, Worker: worker, CountCopies: true, Events: []event.Event{
			{Kind: event.Stored, Engine: hashes, Local: hashes},
			{Kind: event.Stored, Engine: hashes[:2], Tier: event.Disk}, {Kind: event.Stored, Engine: hashes[:1]},
			{Kind: event.Removed, Engine: hashes[1:2]},
			{Kind: event.Stored, Group: 2, Engine: hashes[:2], Tier: event.HostPinned}, {Kind: event.Stored, Group: 2, Engine: hashes[1:2], Tier: event.HostPinned},
		}}
		if _, err := sp.ApplyWait(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
	}
	text = dumped(t, sp)
	digest, err := sp.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return text, digest
}

// dumped is the dump of a space.
func dumped(t testing.TB, sp *shard.Space) []byte {
	t.Helper()
	var out bytes.Buffer
	w := NewWriter(&out, space)
	if err := w.Header(&Header{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range sp.Ranks() {
		events, err := sp.DumpRank(t.Context(), r.RankID)
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			if err := w.Event(r.RankID, &events[i]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Rank(r.RankID, &Publisher{Worker: r.Worker, DPRank: r.DPRank}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// What ranks hold in their cache groups comes back from a dump, for any number of shards,
// also where that is nothing or not all; a program that knows no grouped lines reads the rest.
func TestCacheGroupsComeBack(t *testing.T) {
	list := []event.CacheGroup{{Number: 0, Kind: "full_attention", BlockSize: 16}, {Number: 2, Kind: "sliding_window", BlockSize: 16, Span: 20}}
	one := open(t)
	depths := func(sp *shard.Space) (found [4][event.NumTiers]uint32, exact [4]bool) {
		t.Helper()
		for worker := range uint64(4) {
			var r shard.Result
			sp.Find([]uint64{worker, 5, 6}, &r)
			r.Each(func(_ shard.RankID, d [event.NumTiers]uint32) { found[worker] = d })
			exact[worker] = r.Exact()
		}
		return found, exact
	}
	for worker := range uint64(4) {
		chain := []uint64{10 * worker, 10*worker + 1, 10*worker + 2}
		one.SetCacheGroups(worker, list)
		events := []event.Event{
			{Kind: event.Stored, Engine: chain, Local: []uint64{worker, 5, 6}},
			{Kind: event.Stored, Group: 2, Tier: event.Tier(worker), Engine: chain[:2], Incomplete: worker == 2},
		}
		if worker == 3 {
			events = append(events, event.Event{Kind: event.Removed, Group: 2, Tier: 3, Engine: chain[:2]})
		}
		if _, err := one.ApplyWait(t.Context(), &event.Batch{Space: space, Worker: worker, CountCopies: true, Events: events}); err != nil {
			t.Fatal(err)
		}
	}
	want, exact := depths(one)
	if want != [4][event.NumTiers]uint32{{2, 2, 2, 2}, {0, 2, 2, 2}, {3, 3, 3, 3}, {}} || exact != [4]bool{true, true, false, true} {
		t.Fatalf("%v, %v", want, exact)
	}
	sum, err := one.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := dumped(t, one)
	for _, shards := range []int{1, 2, 3} {
		set := shard.New(shard.Config{Shards: shards})
		t.Cleanup(set.Close)
		other, err := set.Open(space)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := loadInto(other, text); err != nil {
			t.Fatal(err)
		}
		if have, err := other.Digest(t.Context()); err != nil || have != sum || !other.Hybrid() {
			t.Errorf("%d shards: digest %x, %v, the source has %x; hybrid %v", shards, have, err, sum, other.Hybrid())
		}
		for worker := range uint64(4) {
			other.SetCacheGroups(worker, list)
			// Only so it is known of a rank without such blocks that all groups are told.
			if _, err := other.ApplyWait(t.Context(), &event.Batch{Space: space, Worker: worker, Events: []event.Event{{Kind: event.Stored, Group: 2, Engine: []uint64{98}}}}); err != nil {
				t.Fatal(err)
			}
		}
		if have, also := depths(other); have != want || also != exact {
			t.Errorf("%d shards: %v, exact %v; want %v, %v", shards, have, also, want, exact)
		}
	}
	old := regexp.MustCompile(`(?m)^\{"grouped".*\n`).ReplaceAll(text, nil)
	old = regexp.MustCompile(`,"groups":\{[^}]*\}`).ReplaceAll(old, nil)
	other := open(t)
	if _, err := loadInto(other, old); err != nil {
		t.Fatal(err)
	}
	for worker := range uint64(4) {
		other.SetCacheGroups(worker, list)
	}
	if have, exact := depths(other); have[0] != [event.NumTiers]uint32{3, 3, 3, 3} || exact[0] {
		t.Errorf("without grouped lines: %v, exact %v", have, exact)
	}
}

func TestLongChains(t *testing.T) {
	text, want := small(t, lineBlocks+5)
	sp := open(t)
	if _, err := loadInto(sp, text); err != nil {
		t.Fatal(err)
	}
	if got, err := sp.Digest(t.Context()); err != nil || got != want {
		t.Errorf("digest %x, %v, want %x", got, err, want)
	}
	for line := range bytes.Lines(text) {
		if len(line) > 64*lineBlocks {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

// TestDamage: no dump that was cut off, or has another number somewhere, is
// taken for a whole one with other content.
func TestDamage(t *testing.T) {
	text, want := small(t, 3)
	for n := 0; n < len(text)-1; n += 3 { // the last line's end says nothing
		if l, err := loadInto(open(t), text[:n]); !errors.Is(err, ErrTruncated) {
			t.Fatalf("%d of %d bytes: %v, %d ranks", n, len(text), err, len(l.Ranks()))
		}
	}
	for at, c := range text { // every other one: the shards of each take their time
		if c < '0' || c > '9' || at%2 != 0 {
			continue
		}
		bad := bytes.Clone(text)
		bad[at] = '0' + (c-'0'+1)%10
		sp := open(t)
		if _, err := loadInto(sp, bad); err != nil {
			continue
		}
		if got, err := sp.Digest(t.Context()); err != nil || got != want {
			t.Errorf("%d: with another digit it is a dump of digest %x, %v, instead of %x:\n%s", at, got, err, want, bad)
		}
	}
	for _, other := range []string{"1", "3"} {
		if _, err := loadInto(open(t), bytes.Replace(text, []byte(`"version":2`), []byte(`"version":`+other), 1)); !errors.Is(err, ErrVersion) {
			t.Errorf("version %s: %v", other, err)
		}
	}
	if _, err := loadInto(open(t), append(bytes.Clone(text), text...)); !errors.Is(err, ErrDamaged) {
		t.Errorf("two dumps in one: %v", err)
	}
}

func TestCursor(t *testing.T) {
	id := shard.RankID{Worker: 1<<64 - 1, DPRank: 7}
	if got, err := ParseCursor(Cursor(id)); err != nil || got != id {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "1", "1.", "1.2.3", " 1.2", "1.2 ", "-1.2", "01.2", "1.99999999999"} {
		if id, err := ParseCursor(text); err == nil {
			t.Errorf("%q is %v", text, id)
		}
	}
}

// FuzzLoad: whatever is read, a dump is shown as a whole or not at all.
func FuzzLoad(f *testing.F) {
	text, _ := small(f, 3)
	f.Add(text)
	f.Add(text[:len(text)/2])
	f.Fuzz(func(t *testing.T, text []byte) {
		sp := open(t)
		l, err := loadInto(sp, text)
		if err == nil && l.Header().Version != Version {
			t.Error("no header, and no error")
		}
		if n := len(sp.Ranks()); n > len(l.Ranks()) || err != nil && n > 0 {
			t.Errorf("%d ranks are shown, %d were complete: %v", n, len(l.Ranks()), err)
		}
	})
}
