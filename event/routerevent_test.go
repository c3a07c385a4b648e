package event

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// routerCase is one line of testdata/router-events.jsonl: the same RouterEvent
// three times.
type routerCase struct {
	Name       string          `json:"name"`
	JSON       json.RawMessage `json:"json"`
	Named      string          `json:"msgpack_named"`
	Positional string          `json:"msgpack_positional"`
}

func routerCases(t testing.TB) []routerCase {
	t.Helper()
	data, err := os.ReadFile("testdata/router-events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var cases []routerCase
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var c routerCase
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	return cases
}

// encodings returns the case's three messages.
func (c *routerCase) encodings(t testing.TB) map[string][]byte {
	return map[string][]byte{"JSON": c.JSON, "named": unhex(t, c.Named), "positional": unhex(t, c.Positional)}
}

const maxU64 = 1<<64 - 1

// routerWant is what each line of the file means.
var routerWant = map[string]Batch{
	"stored, root, two blocks": {Worker: 7, Events: []Event{{Kind: Stored, ID: 0, Engine: []uint64{1, maxU64}, Local: []uint64{11, 1 << 63}}}},
	"stored, parent, rank 3":   {Worker: 7, Events: []Event{{Kind: Stored, ID: 1, DPRank: 3, HasParent: true, Parent: maxU64, Engine: []uint64{0}, Local: []uint64{0}}}},
	"stored with an image":     {Worker: 7, Events: []Event{{Kind: Stored, ID: 2, Engine: []uint64{5}, Local: []uint64{6}}}},
	"stored on host memory":    {Worker: maxU64, Events: []Event{{Kind: Stored, Tier: HostPinned, ID: 3, Engine: []uint64{5}, Local: []uint64{6}}}},
	"removed":                  {Worker: 7, Events: []Event{{Kind: Removed, ID: 4, DPRank: 1, Engine: []uint64{1, maxU64}}}},
	"removed from disk":        {Worker: 7, Events: []Event{{Kind: Removed, Tier: Disk, ID: 5, DPRank: 1, Engine: []uint64{9}}}},
	"cleared":                  {Worker: 7, Events: []Event{{Kind: Cleared, AllTiers: true, ID: 6}}},
}

func TestRouterEventsOfDynamo(t *testing.T) {
	cases := routerCases(t)
	if len(cases) != len(routerWant) {
		t.Fatalf("%d cases, want %d", len(cases), len(routerWant))
	}
	var d Decoder
	for _, c := range cases {
		want, ok := routerWant[c.Name]
		if !ok {
			t.Fatalf("unknown case %q", c.Name)
		}
		for form, msg := range c.encodings(t) {
			got, err := d.DecodeAny(msg)
			if err != nil || len(got) != 1 || !same(&got[0], &want) {
				t.Errorf("%s, %s: %+v, %v\nwant %+v", c.Name, form, got, err, want)
			}
		}
	}
}

func TestArrayOfRouterEventsGivesABatchPerWorker(t *testing.T) {
	cases := routerCases(t)
	var jsons []string
	msgpacks := []byte{0x90 | byte(2*len(cases))}
	for _, c := range cases {
		jsons = append(jsons, string(c.JSON))
		msgpacks = append(append(msgpacks, unhex(t, c.Named)...), unhex(t, c.Positional)...)
	}
	for form, msg := range map[string][]byte{"JSON": []byte(" [" + strings.Join(jsons, " ,\n") + "]\n"), "msgpack": msgpacks} {
		got, err := Decode(msg)
		if err != nil {
			t.Fatal(err)
		}
		var workers []uint64
		events := 0
		for _, b := range got {
			workers = append(workers, b.Worker)
			events += len(b.Events)
			for _, ev := range b.Events {
				want := routerWant[cases[ev.ID].Name].Events[0]
				if fmt.Sprint(want) != fmt.Sprint(ev) {
					t.Errorf("%s: %+v, want %+v", form, ev, want)
				}
			}
		}
		if want := len(cases) * map[string]int{"JSON": 1, "msgpack": 2}[form]; events != want {
			t.Errorf("%s: %d events, want %d", form, events, want)
		}
		if fmt.Sprint(workers) != fmt.Sprint([]uint64{7, maxU64, 7}) {
			t.Errorf("%s: workers %v", form, workers)
		}
	}
	for _, empty := range []string{"[]", "\x90", "\xdc\x00\x00"} {
		if got, err := Decode([]byte(empty)); err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
}

// mp and obj write msgpack.
var mp = mptest.Encode

type obj = mptest.Map

func TestEnvelopeOfTheEventPlane(t *testing.T) {
	c := routerCases(t)[1]
	want := routerWant[c.Name]
	for form, inner := range c.encodings(t) {
		want.Published = 1700000000123 * 1e6
		ms := []byte{0xcf, 0, 0, 1, 0x8b, 0xcf, 0xe5, 0x68, 0x7b}
		msg := bytes.Join([][]byte{{0x85}, mp("topic"), mp("kv-events"), mp("publisher_id"), mp(7), mp("published_at"), ms, mp("payload"), mp(inner), mp("sequence"), mp(1)}, nil)
		got, err := Decode(msg)
		if err != nil || len(got) != 1 || !same(&got[0], &want) {
			t.Errorf("%s: %+v, %v", form, got, err)
		}
		want.Published = 5
		got, err = Decode(mp(obj{"published_at_ns", 5, "published_at", 1, "payload", inner}))
		if err != nil || len(got) != 1 || !same(&got[0], &want) {
			t.Errorf("%s with nanoseconds: %+v, %v", form, got, err)
		}
	}
	env := mp(obj{"payload", mp(obj{"payload", []byte("{}")})})
	if got, err := Decode(env); !errors.Is(err, ErrMalformed) {
		t.Errorf("an envelope in an envelope: %+v, %v", got, err)
	}
}

func TestRouterEventVariants(t *testing.T) {
	removed := obj{"removed", obj{"block_hashes", []any{3}}}
	want := Batch{Worker: 7, Events: []Event{{Kind: Removed, ID: 4, DPRank: 1, Engine: []uint64{3}}}}
	named := Batch{Worker: WorkerID("node-1"), Events: want.Events}
	host := Batch{Worker: 7, Events: []Event{{Kind: Removed, Tier: HostPinned, ID: 4, DPRank: 1, Engine: []uint64{3}}}}
	foreign := Batch{Worker: 7, Filtered: 1, Events: []Event{{Kind: Removed, ID: 4, DPRank: 1}}}
	cleared := Batch{Worker: 7, Events: []Event{{Kind: Cleared, AllTiers: true, ID: 4}}}
	for name, c := range map[string]struct {
		msg  []byte
		want Batch
	}{
		"positional, oldest":            {mp([]any{7, []any{4, removed, 1}}), want},
		"positional, tier only":         {mp([]any{7, "host_pinned", []any{4, removed, 1}}), host},
		"positional, more fields":       {mp([]any{7, "device", "worker", []any{4, removed, 1, "x"}, obj{"a", "b"}, nil}), want},
		"positional, tier by number":    {mp([]any{7, 1, 0, []any{4, removed, 1}}), host},
		"named, other order, unknown":   {mp(obj{"x", []any{nil, obj{1, 2}}, "event", obj{"dp_rank", 1, "y", nil, "data", removed, "event_id", 4}, "worker_id", "7"}), want},
		"named, nil tier and domain":    {mp(obj{"worker_id", 7, "storage_tier", nil, "residency_domain", nil, "event", []any{4, removed, 1}}), want},
		"worker by name":                {mp([]any{"node-1", []any{4, removed, 1}}), named},
		"a cache owner's":               {mp([]any{7, "disk", "cache_owner", []any{4, removed, 1}}), foreign},
		"cleared as a map":              {mp([]any{7, []any{4, obj{"cleared", nil}, nil}}), cleared},
		"JSON, name, order":             {[]byte(`{"x":[1.5e3,{"a":"\""}],"event":{"dp_rank":1,"data":{"removed":{"block_hashes":[3]}},"event_id":4},"worker_id":"node-1"}`), named},
		"JSON, decimal string":          {[]byte(`{"worker_id":"7","storage_tier":null,"residency_domain":null,"event":{"event_id":4,"data":{"removed":{"block_hashes":[3]}},"dp_rank":1}}`), want},
		"JSON, medium's name":           {[]byte(`{"worker_id":7,"storage_tier":"CPU_PINNED","event":{"event_id":4,"data":{"removed":{"block_hashes":[3]}},"dp_rank":1}}`), host},
		"JSON, cleared as an object":    {[]byte(`{"worker_id":7,"event":{"event_id":4,"data":{"cleared":null},"dp_rank":null}}`), cleared},
		"JSON, a cache owner's":         {[]byte(`{"worker_id":7,"residency_domain":"cache_owner","event":{"event_id":4,"data":{"removed":{"block_hashes":[3]}},"dp_rank":1}}`), foreign},
		"JSON, a key twice":             {[]byte(`{"worker_id":7,"event":{"event_id":4,"data":{"stored":{"parent_hash":1,"blocks":[{"block_hash":1,"tokens_hash":1}]}},"data":{"removed":{"block_hashes":[3]}},"dp_rank":1}}`), want},
		"JSON, an escaped key and name": {[]byte(`{"worker\u005fid":"node\u002d1","event":{"event_id":4,"data":{"removed":{"block_hashes":[3]}},"dp_rank":1}}`), named},
	} {
		got, err := Decode(c.msg)
		if err != nil || len(got) != 1 || !same(&got[0], &c.want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, c.want)
		}
	}
}

func TestRouterEventsRefused(t *testing.T) {
	event := func(data string) []byte {
		return []byte(`{"worker_id":7,"event":{"event_id":1,"data":` + data + `,"dp_rank":0}}`)
	}
	for name, c := range map[string]struct {
		msg  []byte
		want error
		text string // part of the error
	}{
		"nothing":                  {nil, ErrTruncated, "empty"},
		"neither format":           {[]byte("hello"), ErrFormat, "0x68"},
		"no worker":                {[]byte(`{"event":{"event_id":1,"data":"cleared"}}`), ErrMalformed, "worker_id"},
		"no event":                 {[]byte(`{"worker_id":1}`), ErrMalformed, "without event"},
		"no event id":              {[]byte(`{"worker_id":1,"event":{"data":"cleared"}}`), ErrMalformed, "event_id"},
		"no data":                  {[]byte(`{"worker_id":1,"event":{"event_id":1}}`), ErrMalformed, "data"},
		"unknown data":             {event(`"moved"`), ErrMalformed, "moved"},
		"unknown data object":      {event(`{"moved":1}`), ErrMalformed, "moved"},
		"two kinds":                {event(`{"cleared":null,"removed":{"block_hashes":[]}}`), ErrMalformed, "2 kinds"},
		"no kind":                  {event(`{}`), ErrMalformed, "0 kinds"},
		"no blocks":                {event(`{"stored":{"parent_hash":null}}`), ErrMalformed, "blocks"},
		"no hashes":                {event(`{"removed":{}}`), ErrMalformed, "block_hashes"},
		"a block without tokens":   {event(`{"stored":{"blocks":[{"block_hash":1}]}}`), ErrMalformed, "tokens_hash"},
		"a float hash":             {event(`{"removed":{"block_hashes":[1.0]}}`), ErrMalformed, "fraction"},
		"an exponent":              {event(`{"removed":{"block_hashes":[1e3]}}`), ErrMalformed, "exponent"},
		"a negative hash":          {event(`{"removed":{"block_hashes":[-1]}}`), ErrMalformed, "unsigned"},
		"2^64":                     {event(`{"removed":{"block_hashes":[18446744073709551616]}}`), ErrMalformed, "64 bits"},
		"leading zeros":            {event(`{"removed":{"block_hashes":[01]}}`), ErrMalformed, "zeros"},
		"a hash as a string":       {event(`{"removed":{"block_hashes":["1"]}}`), ErrMalformed, "unsigned"},
		"unknown tier":             {[]byte(`{"worker_id":1,"storage_tier":"tape","event":{"event_id":1,"data":"cleared"}}`), ErrMalformed, "tape"},
		"rank above 32 bits":       {[]byte(`{"worker_id":1,"event":{"event_id":1,"data":"cleared","dp_rank":4294967296}}`), ErrMalformed, "32 bits"},
		"something after":          {append(event(`"cleared"`), '1'), ErrMalformed, "after"},
		"a comma too many":         {[]byte(`[` + string(event(`"cleared"`)) + `,]`), ErrMalformed, ","},
		"nested too deeply":        {[]byte(`{"x":` + strings.Repeat("[", 1000)), ErrMalformed, "deep"},
		"msgpack, no worker":       {mp(obj{"event", []any{1, "cleared", 0}}), ErrMalformed, "worker_id"},
		"msgpack, no event":        {mp([]any{7}), ErrMalformed, "without event"},
		"msgpack, unknown data":    {mp([]any{7, []any{1, "moved", 0}}), ErrMalformed, "moved"},
		"msgpack, stored alone":    {mp([]any{7, []any{1, "stored", 0}}), ErrMalformed, "stored"},
		"msgpack, two kinds":       {mp([]any{7, []any{1, obj{"cleared", nil, "cleared", nil}, 0}}), ErrMalformed, "2 kinds"},
		"msgpack, no kind":         {mp([]any{7, []any{1, obj{}, 0}}), ErrMalformed, "0 kinds"},
		"msgpack, unknown tier":    {mp([]any{7, "tape", []any{1, "cleared", 0}}), ErrMalformed, "tape"},
		"msgpack, tier 4":          {mp([]any{7, 4, []any{1, "cleared", 0}}), ErrMalformed, "4"},
		"msgpack, half a block":    {mp([]any{7, []any{1, obj{"stored", []any{nil, nil, []any{[]any{1}}}}, 0}}), ErrMalformed, "tokens_hash"},
		"msgpack, negative rank":   {mp([]any{7, []any{1, "cleared", -1}}), ErrMalformed, "negative"},
		"msgpack, something after": {append(mp([]any{7, []any{1, "cleared", 0}}), 0), ErrMalformed, "after"},
		"msgpack, array bomb":      {[]byte{0xdd, 0xff, 0xff, 0xff, 0xff}, ErrTruncated, "4294967295"},
		"msgpack, map bomb":        {[]byte{0xdf, 0xff, 0xff, 0xff, 0xff}, ErrTruncated, "4294967295"},
	} {
		got, err := Decode(c.msg)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: error %v, want %v with %q (decoded %+v)", name, err, c.want, c.text, got)
		}
	}
}

func TestRouterEventsTruncatedAtEveryOffset(t *testing.T) {
	for _, c := range routerCases(t) {
		for form, msg := range c.encodings(t) {
			for n := range msg {
				if got, err := Decode(msg[:n]); !errors.Is(err, ErrTruncated) {
					t.Errorf("%s, %s, first %d bytes: %+v, %v", c.Name, form, n, got, err)
				}
			}
		}
	}
}

// bigRouterEvent is a store of 64 blocks in the three encodings.
func bigRouterEvent(t testing.TB) map[string][]byte {
	var blocks []string
	var named, positional []byte
	for i := range uint64(64) {
		e, l := i*0x9e3779b97f4a7c15|1<<63, i*0xc2b2ae3d27d4eb4f|1<<63
		blocks = append(blocks, fmt.Sprintf(`{"block_hash":%d,"tokens_hash":%d,"mm_extra_info":null}`, e, l))
		he, hl := fmt.Sprintf("cf%016x", e), fmt.Sprintf("cf%016x", l)
		named = append(named, unhex(t, "83aa626c6f636b5f68617368"+he+"ab746f6b656e735f68617368"+hl+"ad6d6d5f65787472615f696e666fc0")...)
		positional = append(positional, unhex(t, "93"+he+hl+"c0")...)
	}
	c := routerCases(t)[1] // stored, parent, rank 3; its one block is replaced
	cut := func(whole, block, blocks string) []byte {
		s := strings.Replace(whole, "91"+block, "dc0040"+blocks, 1)
		if s == whole {
			t.Fatal("the block is not there")
		}
		return unhex(t, s)
	}
	j := strings.Replace(string(c.JSON), `{"block_hash":0,"tokens_hash":0,"mm_extra_info":null}`, strings.Join(blocks, ","), 1)
	return map[string][]byte{
		"JSON":       []byte(j),
		"named":      cut(c.Named, "83aa626c6f636b5f6861736800ab746f6b656e735f6861736800ad6d6d5f65787472615f696e666fc0", hex.EncodeToString(named)),
		"positional": cut(c.Positional, "930000c0", hex.EncodeToString(positional)),
	}
}

func TestRouterEventDecodingDoesNotAllocate(t *testing.T) {
	for form, msg := range bigRouterEvent(t) {
		var d Decoder
		if n := testing.AllocsPerRun(100, func() {
			if got, err := d.DecodeAny(msg); err != nil || len(got[0].Events[0].Engine) != 64 {
				t.Fatal(got, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", form, n)
		}
	}
}

func BenchmarkRouterEventDecode(b *testing.B) {
	one := routerCases(b)[1]
	for blocks, forms := range map[int]map[string][]byte{64: bigRouterEvent(b), 1: one.encodings(b)} {
		for form, msg := range forms {
			b.Run(fmt.Sprintf("%s/%d", form, blocks), func(b *testing.B) {
				var d Decoder
				b.ReportAllocs()
				b.SetBytes(int64(len(msg)))
				for b.Loop() {
					if _, err := d.DecodeAny(msg); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(blocks)*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
			})
		}
	}
}

// checkDecoded fails if a decoder let a batch through that means nothing.
func checkDecoded(t *testing.T, batches []Batch) {
	for _, b := range batches {
		b.Space.BlockSize = 16
		if err := b.Check(); err != nil {
			t.Fatalf("%v: %+v", err, b)
		}
	}
}

func FuzzRouterEventJSON(f *testing.F) {
	for _, c := range routerCases(f) {
		f.Add([]byte(c.JSON))
	}
	f.Add([]byte(`[{"worker_id":"x","event":{"event_id":1,"data":"cleared"}},null]`))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var d Decoder
		got, err := d.DecodeRouterJSON(msg)
		if err == nil && !json.Valid(msg) {
			t.Fatalf("%q is not JSON but decodes to %+v", msg, got)
		}
		checkDecoded(t, got)
	})
}

func FuzzRouterEventMsgpack(f *testing.F) {
	for _, c := range routerCases(f) {
		f.Add(unhex(f, c.Named))
		f.Add(unhex(f, c.Positional))
	}
	f.Add(mp(obj{"payload", []byte(routerCases(f)[0].JSON)}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		var d Decoder
		got, _ := d.DecodeRouterMsgpack(msg)
		checkDecoded(t, got)
	})
}

// One bad event among others is left out alone, and named as far as it can be.
func TestABadRouterEventSpoilsNoOther(t *testing.T) {
	good := func(id int) obj {
		return obj{"worker_id", 7, "event", obj{"event_id", id, "data", obj{"removed", obj{"block_hashes", []any{id}}}, "dp_rank", 2}}
	}
	stored := func(blocks ...any) obj { return obj{"stored", obj{"parent_hash", nil, "blocks", blocks}} }
	for name, tc := range map[string]struct {
		event any
		named bool
		id    uint64
	}{
		"unknown kind":  {obj{"worker_id", 7, "event", obj{"event_id", 2, "data", obj{"moved", obj{}}, "dp_rank", 2}}, true, 2},
		"two kinds":     {obj{"worker_id", 7, "event", obj{"event_id", 2, "data", obj{"cleared", nil, "removed", obj{}}, "dp_rank", 2}}, true, 2},
		"unknown tier":  {obj{"worker_id", 7, "storage_tier", "tape", "event", obj{"event_id", 2, "data", "cleared", "dp_rank", 2}}, true, 2},
		"half a block":  {obj{"worker_id", 7, "event", obj{"data", stored(obj{"block_hash", 1, "tokens_hash", 1}, obj{"block_hash", 2}), "event_id", 2, "dp_rank", 2}}, true, 2},
		"no data":       {obj{"worker_id", 7, "event", obj{"event_id", 2, "dp_rank", 2}}, true, 2},
		"no id":         {obj{"worker_id", 7, "event", obj{"data", "cleared", "dp_rank", 2}}, true, 0},
		"no worker":     {obj{"event", obj{"event_id", 2, "data", "cleared", "dp_rank", 2}}, false, 0},
		"rank a text":   {obj{"worker_id", 7, "event", obj{"event_id", 2, "data", "cleared", "dp_rank", "two"}}, false, 0},
		"no event":      {obj{"worker_id", 7}, false, 0},
		"another value": {true, false, 0},
	} {
		for form, encode := range map[string]func(any) []byte{"JSON": asJSON, "msgpack": func(v any) []byte { return mp(v) }} {
			var d Decoder
			got, err := d.DecodeAny(encode([]any{good(1), tc.event, good(3)}))
			if err != nil || len(got) != 1 || len(got[0].Events) != 2 {
				t.Errorf("%s, %s: %+v, %v", name, form, got, err)
				continue
			}
			for i, ev := range got[0].Events {
				id := uint64(1 + 2*i)
				want := Event{Kind: Removed, DPRank: 2, ID: id, Engine: []uint64{id}}
				if fmt.Sprint(ev) != fmt.Sprint(want) {
					t.Errorf("%s, %s: %+v, want %+v", name, form, ev, want)
				}
			}
			bad := d.Bad()
			if len(bad) != 1 || bad[0].Named != tc.named || !errors.Is(bad[0].Err, ErrMalformed) {
				t.Errorf("%s, %s: bad %+v", name, form, bad)
			} else if b := bad[0]; tc.named && (b.Worker != 7 || b.DPRank != 2 || b.ID != tc.id) {
				t.Errorf("%s, %s: bad %+v, want event %d of rank 2 of worker 7", name, form, b, tc.id)
			}
			// Alone it is the message's error, and named as well.
			if got, err := d.DecodeAny(encode(tc.event)); err == nil || tc.named && (len(d.Bad()) != 1 || d.Bad()[0].ID != tc.id) {
				t.Errorf("%s alone, %s: %+v, %v, bad %+v", name, form, got, err, d.Bad())
			}
			if _, err := Decode(encode([]any{good(1), tc.event, good(3)})); err == nil {
				t.Errorf("%s, %s: a Decode of all of it succeeds", name, form)
			}
		}
	}
	// Positional, with the rank behind what is bad.
	var d Decoder
	got, err := d.DecodeAny(mp([]any{good(1), []any{7, "device", nil, []any{2, obj{"moved", nil}, 2}}, good(3)}))
	if b := d.Bad(); err != nil || len(got[0].Events) != 2 || len(b) != 1 || !b[0].Named || b[0].DPRank != 2 || b[0].ID != 2 {
		t.Errorf("%+v, %v, bad %+v", got, err, b)
	}
	// What is broken in its form is of no use at all.
	for _, msg := range [][]byte{
		[]byte(`[{"worker_id":7,"event":{"event_id":1,"data":"cleared"}},{"worker_id":7,"event":{`),
		[]byte(`[{"worker_id":7,"event":{"event_id":1,"data":"cleared"}},{"worker_id":}]`),
		mp([]any{good(1), good(2)})[:60],
	} {
		if got, err := d.DecodeAny(msg); err == nil || len(got) > 0 || len(d.Bad()) > 0 {
			t.Errorf("%q: %+v, %v, bad %+v", msg, got, err, d.Bad())
		}
	}
}

// asJSON writes what mp writes as JSON.
func asJSON(v any) []byte {
	b := []byte{'['}
	switch v := v.(type) {
	case obj:
		b[0] = '{'
		for i := 0; i < len(v); i += 2 {
			b = append(append(append(append(b, asJSON(v[i])...), ':'), asJSON(v[i+1])...), ',')
		}
		return append(bytes.TrimSuffix(b, []byte{','}), '}')
	case []any:
		for _, e := range v {
			b = append(append(b, asJSON(e)...), ',')
		}
		return append(bytes.TrimSuffix(b, []byte{','}), ']')
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
