package query

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// binarySpaceAnswer is one space of a binary answer, read as docs/http.md says.
type binarySpaceAnswer struct {
	group  string
	size   uint32
	blocks uint32
	depths map[shard.RankID]coretest.Depths
	held   map[shard.RankID]uint32
}

func readBinary(t *testing.T, data []byte) (spaces []binarySpaceAnswer) {
	t.Helper()
	le := binary.LittleEndian
	if len(data) < 16 || string(data[:4]) != "KVA1" || len(data)%8 != 0 {
		t.Fatalf("no binary answer: %q", data)
	}
	n := le.Uint32(data[8:])
	data = data[16:]
	for range n {
		sp := binarySpaceAnswer{size: le.Uint32(data), blocks: le.Uint32(data[4:]), depths: map[shard.RankID]coretest.Depths{}, held: map[shard.RankID]uint32{}}
		ranks, name := le.Uint32(data[8:]), int(le.Uint32(data[12:]))
		sp.group = string(data[16 : 16+name])
		for data = data[16+(name+7)/8*8:]; ranks > 0; ranks-- {
			id := shard.RankID{Worker: le.Uint64(data), DPRank: le.Uint32(data[8:])}
			sp.depths[id] = coretest.Depths{le.Uint32(data[12:]), le.Uint32(data[16:]), le.Uint32(data[20:]), le.Uint32(data[24:])}
			sp.held[id] = le.Uint32(data[28:])
			data = data[32:]
		}
		spaces = append(spaces, sp)
	}
	if len(data) != 0 {
		t.Fatalf("%d bytes too many", len(data))
	}
	return spaces
}

func littleEndian[T uint32 | uint64](list []T) string {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, list) // a Buffer takes all
	return b.String()
}

// compareForms asks for the prompt in the other forms: the binary one, and the
// indexer's routes by local and by sequence hashes.
func compareForms(t *testing.T, s *served, o *core.Oracle, prompt []uint64) {
	t.Helper()
	want := map[shard.RankID]coretest.Depths{}
	for h, d := range coretest.OracleAnswer(o, prompt) {
		want[identify(h)] = d
	}
	resp, data := s.do(t, "POST", "/v1/find_matches?model=m", littleEndian(prompt), "Content-Type", "application/octet-stream")
	if spaces := readBinary(t, data); resp.StatusCode != 200 || len(spaces) != 1 || !maps.Equal(spaces[0].depths, want) {
		t.Errorf("prompt %d:\n have %v\n want %v", prompt, spaces, want)
	}
	type instance struct {
		Longest   uint32 `json:"longest_matched"`
		GPU, Disk uint32
		CPU       uint32
		DP        map[string]uint32
	}
	workers := map[string]instance{}
	for id, d := range want {
		name := strconv.FormatUint(id.Worker, 10)
		w := workers[name]
		w.Longest, w.GPU, w.CPU, w.Disk = max(w.Longest, 16*d[3]), max(w.GPU, 16*d[0]), max(w.CPU, 16*d[1]), max(w.Disk, 16*d[3])
		if w.DP == nil {
			w.DP = map[string]uint32{}
		}
		w.DP[strconv.Itoa(int(id.DPRank))] = 16 * d[0]
		workers[name] = w
	}
	_, data = s.do(t, "POST", "/query_by_hash", `{"model_name":"m","block_hashes":`+jsonOf(t, prompt)+`}`)
	var dynamo struct {
		Scores      map[string]map[string]uint32
		Frequencies []uint32
		Instances   map[string]instance
	}
	if err := json.Unmarshal(data, &dynamo); err != nil || !reflect.DeepEqual(dynamo.Instances, workers) {
		t.Errorf("prompt %d: %v\n have %+v\n want %+v", prompt, err, dynamo.Instances, workers)
	}
	for name, w := range workers {
		for rank, d := range w.DP {
			if dynamo.Scores[name][rank] != d {
				t.Errorf("prompt %d: instance %s rank %s scores %d, want %d", prompt, name, rank, dynamo.Scores[name][rank], d)
			}
		}
	}
	_, data = s.do(t, "POST", "/query_by_hash", `{"model":"m","block_size":16,"seq_hashes":`+jsonOf(t, blockhash.SequenceHashes([]uint64{}, prompt))+`}`)
	var rfc map[string]map[string]instance
	if err := json.Unmarshal(data, &rfc); err != nil || len(rfc["default"]) != len(workers) {
		t.Errorf("prompt %d: %v in %s, want %d workers", prompt, err, data, len(workers))
	}
	for name, w := range rfc["default"] {
		if w.Longest != workers[name].Longest || w.GPU != workers[name].GPU {
			t.Errorf("prompt %d: by sequence hashes %s has %+v, by local hashes %+v", prompt, name, w, workers[name])
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestBinaryForm(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	const octets = "application/octet-stream"
	resp, data := s.do(t, "POST", "/v1/find_matches?model=m&tree_sizes=true", littleEndian([]uint64{1, 2, 3}), "Content-Type", octets)
	spaces := readBinary(t, data)
	if resp.Header.Get("Content-Type") != octets || len(spaces) != 2 || spaces[1].group != "g" || spaces[1].size != 4 || spaces[0].blocks != 3 ||
		spaces[0].held[rank(7, 1)] != 3 || spaces[0].depths[rank(7, 1)] != (coretest.Depths{1, 3, 3, 3}) {
		t.Errorf("%s %+v", resp.Header, spaces)
	}
	// JSON in, binary out, and the other way about.
	resp, data = s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`, "Accept", octets)
	if resp.Header.Get("Content-Type") != octets || len(readBinary(t, data)) != 2 {
		t.Errorf("%s %q", resp.Header, data)
	}
	resp, data = s.do(t, "POST", "/v1/find_matches?model=m", littleEndian([]uint64{1}), "Content-Type", octets, "Accept", "application/json")
	if _, want := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`); resp.Header.Get("Content-Type") != "application/json" || !bytes.Equal(data, want) {
		t.Errorf("%s %s, want %s", resp.Header, data, want)
	}
	// By tokens.
	tokens := []uint32{5, 6, 7, 8, 9}
	local, err := blockhash.LocalHashes(nil, tokens, 2, blockhash.Options{Seed: blockhash.Seed("l", "s")})
	if err != nil {
		t.Fatal(err)
	}
	ix := new(fakeIndex)
	ix.add(event.Space{Model: "m/x", BlockSize: 2}, fakeRank{rank(1, 0), local, nil})
	s = serve(t, ix, testConfig(t, "--http-max-tokens=8"))
	_, data = s.do(t, "POST", "/v1/find_matches?elements=token_ids&model=m%2Fx&lora_name=l&cache_salt=s&block_size=2&max_blocks=9&early_exit=false",
		littleEndian(tokens), "Content-Type", octets)
	if spaces := readBinary(t, data); spaces[0].depths[rank(1, 0)] != (coretest.Depths{2, 2, 2, 2}) || spaces[0].held[rank(1, 0)] != 0 {
		t.Errorf("%+v", spaces)
	}
	for args, want := range map[string]string{
		"": "missing", "model=m&model=m": "duplicate_field", "model=m&x=1": "unknown_argument", "model=m&block_size=x": "out_of_range",
		"model=m&max_blocks=0": "out_of_range", "model=m&early_exit=1": "wrong_type", "model=m&elements=bytes": "out_of_range",
		"model=m&lora_name=x": "conflict", "model=" + strings.Repeat("m", 1025): "out_of_range", "model=n": "unknown_model", "model=m%2Fx&group=g": "unknown_group",
	} {
		_, data := s.do(t, "POST", "/v1/find_matches?"+args, littleEndian([]uint64{1}), "Content-Type", octets)
		if !strings.Contains(string(data), `"reason":"`+want+`"`) {
			t.Errorf("%.40s: %s, want %s", args, data, want)
		}
	}
	if _, data := s.do(t, "POST", "/v1/find_matches?model=m", littleEndian(make([]uint64, 9)), "Content-Type", octets); !strings.Contains(string(data), `"too_many"`) {
		t.Errorf("%s", data)
	}
}

func TestBatch(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-max-batch=3", "--http-max-tokens=5"))
	ask := func(body string) (int, string) {
		resp, data := s.do(t, "POST", "/v1/find_matches/batch", body)
		return resp.StatusCode, string(data)
	}
	_, one := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[1,2]}`)
	_, two := s.do(t, "POST", "/v1/find_matches", `{"model":"x","hashes":[1]}`)
	want := `{"answers":[` + strings.TrimSpace(string(one)) + "," + strings.TrimSpace(string(two)) + "]}\n"
	if status, got := ask(` {"requests": [ {"model":"m","hashes":[1,2]} , {"model":"x","hashes":[1]} ] } `); status != 200 || got != want {
		t.Errorf("%d %s, want %s", status, got, want)
	}
	if status, got := ask(`{"requests":[]}`); status != 200 || got != "{\"answers\":[]}\n" {
		t.Errorf("%d %s", status, got)
	}
	if _, got := ask(`{"requests":[{"model":"m","hashes":[1,2,3]},{"model":"m","hashes":[1,2,3]}]}`); strings.Count(got, "too_many") != 1 {
		t.Errorf("six hashes are over the limit of five: %s", got)
	}
	for body, reason := range map[string]string{
		`{}`: "missing", `[]`: "wrong_type", `{"requests":1}`: "wrong_type", `{"requests":[],"requests":[]}`: "duplicate_field", `{"x":1}`: "unknown_field",
		`{"requests":[{},{},{},{}]}`: "too_many", `{"requests":[{}`: "malformed_json", `{"requests":[]}x`: "malformed_json", `{"requests":[{]}`: "malformed_json",
	} {
		if status, got := ask(body); status != 400 || !strings.Contains(got, `"reason":"`+reason+`"`) {
			t.Errorf("%s: %d %s, want %s", body, status, got, reason)
		}
	}
}

// TestMooncakesExample answers the example of Mooncake's indexer API document
// (docs/source/design/conductor/indexer-api-design.md) as it is answered there.
func TestMooncakesExample(t *testing.T) {
	tokens := make([]uint32, 256)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	local, err := blockhash.LocalHashes(nil, tokens, 64, blockhash.Options{Seed: blockhash.Seed("sql-adapter", "w8a8")})
	if err != nil {
		t.Fatal(err)
	}
	node := event.WorkerID("vllm-prefill-node1")
	sp := event.Space{Model: "deepseek", BlockSize: 64}
	ix := new(fakeIndex)
	ix.add(sp, fakeRank{rank(node, 0), local[:2], nil}, fakeRank{rank(node, 1), local, []event.Tier{0, 1, 1, 1}}, fakeRank{rank(7, 0), local[:1], nil})
	w := registry.Worker{ID: node, Name: "vllm-prefill-node1", Model: "deepseek", BlockSize: 64}
	s := serveRegistry(t, ix, &fakeRegistry{entries: []registry.Entry{{Worker: w, Key: w.Key()}}})
	const want = `{"default":{"vllm-prefill-node1":{"longest_matched":256,"GPU":128,"DP":{"0":128,"1":256},"CPU":256,"DISK":0}}}` + "\n"
	for path, list := range map[string]string{
		"/query":         `"token_ids":` + jsonOf(t, tokens),
		"/query_by_hash": `"seq_hashes":` + jsonOf(t, blockhash.SequenceHashes(nil, local)),
	} {
		for _, tenant := range []string{`"tenant_id":"default",`, ``} {
			body := `{"model":"deepseek","lora_name":"sql-adapter",` + list + `,` + tenant + `"instance_id":"vllm-prefill-node1","block_size":64,"cache_salt":"w8a8"}`
			if resp, got := s.do(t, "POST", path, body); resp.StatusCode != 200 || string(got) != want {
				t.Errorf("%s: %d %s, want %s", path, resp.StatusCode, got, want)
			}
		}
	}
	if _, got := s.do(t, "POST", "/query_by_hash", `{"model":"deepseek","block_hash":`+jsonOf(t, local[:1])+`,"block_size":64,"medium":["L1"]}`); !strings.Contains(string(got), `"7":{"longest_matched":64,`) {
		t.Errorf("every instance: %s", got)
	}
}

// TestDynamosIndexer asks as clients of Dynamo's standalone indexer do
// (docs/components/router/standalone-indexer.md).
func TestDynamosIndexer(t *testing.T) {
	tokens := make([]uint32, 80)
	local, err := blockhash.LocalHashes(nil, tokens, 16, blockhash.Options{Seed: blockhash.Seed("", "")})
	if err != nil {
		t.Fatal(err)
	}
	signed := make([]int64, len(local))
	for i, h := range local {
		signed[i] = int64(h)
	}
	ix := new(fakeIndex)
	// The tiers of a test of its overlap summaries: 2 of 5 blocks on device,
	// one more on the host, two more on disk; the other rank 1 and one more.
	ix.add(event.Space{Model: "org/m", BlockSize: 16}, fakeRank{rank(7, 0), local, []event.Tier{0, 0, 1, 2, 2}}, fakeRank{rank(7, 1), local[:2], []event.Tier{0, 2}})
	ix.add(event.Space{Model: "org/m", BlockSize: 16, Group: "acme"}, fakeRank{rank(8, 0), local[:1], nil})
	s := serve(t, ix, testConfig(t))
	const want = `{"scores":{"7":{"0":32,"1":16}},"frequencies":[],"instances":{"7":{"longest_matched":80,"gpu":32,"dp":{"0":32,"1":16},"cpu":48,"disk":80}}}` + "\n"
	for path, body := range map[string]string{
		"/query":         `{"token_ids":` + jsonOf(t, tokens) + `,"model_name":"org/m","tenant_id":"ignored","lora_name":null}`,
		"/query_by_hash": `{"block_hashes":` + jsonOf(t, signed) + `,"model_name":"org/m","routing_group":"default","future_field":{"a":[1]}}`,
	} {
		if resp, got := s.do(t, "POST", path, body); resp.StatusCode != 200 || string(got) != want {
			t.Errorf("%s: %d %s, want %s", path, resp.StatusCode, got, want)
		}
	}
	if _, got := s.do(t, "POST", "/query", `{"token_ids":`+jsonOf(t, tokens)+`,"model_name":"org/m","routing_group":"acme"}`); !strings.Contains(string(got), `{"scores":{"8":{"0":16}}`) {
		t.Errorf("%s", got)
	}
	for body, status := range map[string]int{
		`{"block_hashes":[1],"model_name":"x"}`:                                          404,
		`{"block_hashes":[1],"model_name":"org/m","routing_group":"x"}`:                  404,
		`{"block_hashes":[1],"model_name":"org/m","cache_salt":"s"}`:                     400,
		`{"block_hashes":[1]}`:                                                           400,
		`{"model_name":"org/m"}`:                                                         400,
		`{"block_hashes":[1.5],"model_name":"org/m"}`:                                    400,
		`{"block_hashes":"x","model_name":"org/m"}`:                                      400,
		`{"model":"org/m","seq_hashes":[1]}`:                                             400, // no block size
		`{"model":"org/m","block_size":16}`:                                              400,
		`{"model":"org/m","block_size":16,"seq_hashes":[1],"instance_id":[]}`:            400,
		`{"model":"org/m","block_size":16,"seq_hashes":[1],"lora_id":1,"lora_name":"x"}`: 400,
		`{"model":"org/m","block_size":32,"seq_hashes":[1]}`:                             400,
		`{"block_hashes":[1],"model_name":"org/m"`:                                       400,
		`[]`: 400,
	} {
		resp, got := s.do(t, "POST", "/query_by_hash", body)
		var e struct{ Error string }
		if err := json.Unmarshal(got, &e); err != nil || resp.StatusCode != status || e.Error == "" {
			t.Errorf("%s: %d %s, want %d", body, resp.StatusCode, got, status)
		}
	}
}

func TestCompressedBodies(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t, "--http-max-decompressed=64KiB"))
	pack := map[string]func(string) string{
		"gzip": func(text string) string {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			if _, err := z.Write([]byte(text)); err != nil || z.Close() != nil {
				t.Fatal(err)
			}
			return b.String()
		},
		"zstd": func(text string) string {
			z, err := zstd.NewWriter(nil)
			if err != nil {
				t.Fatal(err)
			}
			return string(z.EncodeAll([]byte(text), nil))
		},
	}
	const body = `{"model":"m","hashes":[1,2]}`
	_, want := s.do(t, "POST", "/v1/find_matches", body)
	for name, f := range pack {
		for range 2 { // the decoders are reused
			if resp, got := s.do(t, "POST", "/v1/find_matches", f(body), "Content-Encoding", name); resp.StatusCode != 200 || !bytes.Equal(got, want) {
				t.Errorf("%s: %s %s", name, resp.Status, got)
			}
		}
		bomb := f(body + strings.Repeat(" ", 32<<20))
		if resp, got := s.do(t, "POST", "/v1/find_matches", bomb, "Content-Encoding", name); resp.StatusCode != 413 || !strings.Contains(string(got), `"body_too_large"`) {
			t.Errorf("a %s bomb of %d bytes: %s %s", name, len(bomb), resp.Status, got)
		}
		if resp, _ := s.do(t, "POST", "/v1/find_matches", f(body)[:20], "Content-Encoding", name); resp.StatusCode != 400 {
			t.Errorf("half a %s: %s", name, resp.Status)
		}
	}
}

func TestSpaces(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	_, all := s.do(t, "GET", "/v1/spaces", "")
	const want = `{"spaces":[{"model":"m","group":"","block_size":2,"workers":3,"ranks":4,"blocks":{"device":5,"host_pinned":1,"disk":1,"external":1}},` +
		`{"model":"m","group":"g","block_size":4,"workers":1,"ranks":1,"blocks":{"device":2,"host_pinned":0,"disk":0,"external":0}},` +
		`{"model":"n\"é","group":"","block_size":2,"workers":1,"ranks":1,"blocks":{"device":1,"host_pinned":0,"disk":0,"external":0}}]}` + "\n"
	if string(all) != want {
		t.Errorf("got %s, want %s", all, want)
	}
	if _, none := s.do(t, "GET", "/v1/spaces?model=x", ""); string(none) != "{\"spaces\":[]}\n" {
		t.Errorf("%s", none)
	}
}

func TestExplain(t *testing.T) {
	s := serve(t, twoSpaces(), testConfig(t))
	_, data := s.do(t, "POST", "/v1/explain", `{"model":"m","block_size":2,"hashes":[1,2,3]}`)
	var e explanation
	if err := json.Unmarshal(data, &e); err != nil || len(e.Spaces) != 1 || len(e.Others) != 1 || e.Others[0].Group != "g" {
		t.Fatalf("%v in %s", err, data)
	}
	reasons := map[string]string{}
	for _, r := range e.Spaces[0].Ranks {
		reasons[fmt.Sprint(r.WorkerID, "/", r.DPRank)] = r.Reason
		if (r.Missing == nil) != (r.Reason == explainWhole) || r.Detail == "" {
			t.Errorf("%+v", r)
		}
	}
	want := map[string]string{"7/0": explainOthers, "7/1": explainWhole, "18446744073709551615/0": explainOthers, "8/0": explainFirst}
	if !maps.Equal(reasons, want) {
		t.Errorf("%v, want %v", reasons, want)
	}
	for i, r := range e.Spaces[0].Ranks {
		if r.WorkerID == "7" && r.DPRank == 0 && (*r.Missing != absent{2, "3", decimal(blockhash.SequenceHashes(nil, []uint64{1, 2, 3})[2]), 1}) {
			t.Errorf("rank %d misses %+v", i, r.Missing)
		}
	}
	_, data = s.do(t, "POST", "/v1/explain", `{"model":"m","group":"g","token_ids":[1,2,3,4,5],"cache_salt":"s"}`)
	if err := json.Unmarshal(data, &e); err != nil || e.Asked.Seed != decimal(blockhash.Seed("", "s")) || e.Spaces[0].LeftOver != 1 || e.Spaces[0].Blocks != 1 {
		t.Errorf("%v in %s", err, data)
	}
	if resp, _ := s.do(t, "POST", "/v1/explain", `{"model":"x","hashes":[]}`); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
}
