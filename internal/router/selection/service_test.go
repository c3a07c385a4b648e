package selection

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

const size = 4

// newModel makes a model of three workers, of which number 2 holds the first
// two blocks of tokens 0, 1, 2, …
func newModel(t *testing.T, name, group string) *Model {
	t.Helper()
	set := shard.New(shard.Config{})
	t.Cleanup(set.Close)
	space, err := set.Open(event.Space{Model: name, Group: group, BlockSize: size})
	if err != nil {
		t.Fatal(err)
	}
	_, err = space.ApplyWait(t.Context(), &event.Batch{Space: space.Key(), Worker: 2, Events: []event.Event{{
		Kind: event.Stored, Engine: []uint64{11, 12}, Local: hashes(t, 8),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := route.New(route.Config{BlockSize: size, Index: space, Settings: route.DefaultSettings()})
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(3) {
		if err := r.SetWorker(route.Worker{ID: id, TotalBlocks: 100}); err != nil {
			t.Fatal(err)
		}
	}
	return &Model{Space: space.Key(), Router: r, Endpoint: func(w uint64) string {
		if w == 0 {
			return ""
		}
		return fmt.Sprintf("http://engine-%d:8000", w)
	}}
}

func hashes(t *testing.T, n int) []uint64 {
	t.Helper()
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	local, err := blockhash.LocalHashes(nil, tokens, size, blockhash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return local
}

func service(models ...*Model) *Service {
	return New(Config{Models: func() []*Model { return models }, MaxBody: 4096, MaxTokens: 64})
}

// ask also compares what is asked and answered with the OpenAPI document.
func ask(t testing.TB, s *Service, method, path, body string) Answer {
	t.Helper()
	path, query, _ := strings.Cut(path, "?")
	a := s.Serve(context.Background(), Request{Method: method, Path: path, Query: query, ContentType: "application/json", Body: []byte(body)})
	checkExchange(t, method, path, body, a)
	return a
}

func want(t *testing.T, a Answer, status int, body string) {
	t.Helper()
	if got := strings.TrimSpace(string(a.Body)); a.Status != status || got != body {
		t.Errorf("got %d %s\nwant %d %s", a.Status, got, status, body)
	}
}

const tokens9 = `"token_ids":[0,1,2,3,4,5,6,7,8]`

func TestSelect(t *testing.T) {
	m := newModel(t, "m", "")
	s := service(m)
	const answer = `{"selection_id":"a","model_name":"m","routing_group":"default","worker_id":2,"dp_rank":0,` +
		`"endpoint":"http://engine-2:8000","block_size":4,` +
		`"overlap":{"longest_matched":8,"gpu":8,"dp":{"0":8},"cpu":8,"disk":8},"effective_prefill_tokens":1}`
	want(t, ask(t, s, "POST", "/v1/select", `{"selection_id":"a","model_name":"m",`+tokens9+`}`), 200, answer)
	h := hashes(t, 8)
	for _, form := range []string{
		fmt.Sprintf(`"block_hashes":[%d,%d],"isl_tokens":9`, h[0], h[1]),
		fmt.Sprintf(`"block_hashes":[%d,"%d"],"sequence_hashes":[1,2],"isl_tokens":9,"routing_group":"default"`, int64(h[0]), h[1]),
		fmt.Sprintf(`"block_hashes":[%d,%d],"isl_tokens":9,"lora_name":null,"worker_id":null`, h[0], int64(h[1])),
	} {
		want(t, ask(t, s, "POST", "/v1/select", `{"selection_id":"a","model_name":"m",`+form+`}`), 200, answer)
	}
	if n := m.Router.Stats().Live; n != 0 {
		t.Errorf("selecting has booked %d requests", n)
	}
	want(t, ask(t, s, "POST", "/v1/select_and_reserve", `{"selection_id":"a","model_name":"m",`+tokens9+`}`), 200, answer)
	want(t, ask(t, s, "POST", "/v1/select_and_reserve", `{"selection_id":"a","model_name":"m",`+tokens9+`}`), 409,
		`{"error":{"field":"selection_id","reason":"duplicate_selection","message":"booking request \"a\": the request has a live booking"}}`)
	if n := m.Router.Stats().Live; n != 1 {
		t.Errorf("%d bookings, want one", n)
	}
}

// An unnamed selection gets an id by which it can be followed, and other fields
// of the body have their effect.
func TestOptions(t *testing.T) {
	m := newModel(t, "m", "")
	s := service(m)
	choose := func(fields string) (a chosen) {
		t.Helper()
		got := ask(t, s, "POST", "/v1/select_and_reserve", `{"model_name":"m",`+tokens9+fields+`}`)
		if err := json.Unmarshal(got.Body, &a); err != nil || got.Status != 200 {
			t.Fatalf("%s: %d %s", fields, got.Status, got.Body)
		}
		if a.ID == "" || ask(t, s, "DELETE", "/v1/reservations/"+a.ID, "").Status != 200 {
			t.Errorf("%s: reservation %q cannot be freed", fields, a.ID)
		}
		return a
	}
	if a := choose(""); a.Worker != 2 {
		t.Errorf("worker %d, want the one with the prefix", a.Worker)
	}
	if a := choose(`,"allowed_worker_ids":[0,1],"excluded_worker_ids":[1]`); a.Worker != 0 || a.Endpoint != nil {
		t.Errorf("%+v, want worker 0, of unknown endpoint", a)
	}
	if a := choose(`,"worker_id":"1","dp_rank":0`); a.Worker != 1 || a.Prefill != 9 {
		t.Errorf("%+v, want the pinned worker 1", a)
	}
	if a := choose(`,"cache_salt":"s"`); a.Overlap.Longest != 0 {
		t.Errorf("%+v, want no overlap under another salt", a)
	}
	if a := choose(`,"lora_name":"l"`); a.Overlap.Longest != 0 {
		t.Errorf("%+v, want no overlap under another LoRA", a)
	}
	if a := choose(`,"explain":true,"excluded_worker_ids":[1]`); len(a.Explain) != 3 || a.Explain[0].Formula == "" || a.Explain[2].Left != "excluded" {
		t.Errorf("explained: %+v", a.Explain)
	}
	seen := map[uint64]bool{}
	for range 200 {
		seen[choose(`,"router_temperature":1000`).Worker] = true
	}
	if len(seen) != 3 {
		t.Errorf("at a high temperature %v", seen)
	}
	if a := choose(`,"phase":"decode"`); a.Prefill != 0 {
		t.Errorf("decode computes %d prompt tokens", a.Prefill)
	}
	got := ask(t, s, "POST", "/v1/select", `{"model_name":"m","phase":"prefill",`+tokens9+`}`)
	if got.Status != 503 || got.Reason != "no_worker" {
		t.Errorf("prefill without such workers: %d %s", got.Status, got.Body)
	}
}

// Workers that a request may go to are taken from lists that others read, too.
func TestAllowLeavesLists(t *testing.T) {
	list := []uint64{1, 2, 3}
	var o route.Options
	Allow(&o, list)
	Allow(&o, nil)
	Allow(&o, []uint64{2})
	if !slices.Equal(o.Allowed, []uint64{2}) || !slices.Equal(list, []uint64{1, 2, 3}) {
		t.Errorf("allowed are %v, and the list is %v", o.Allowed, list)
	}
}

// What a name means first counts, where the group that is asked for has it.
func TestNamed(t *testing.T) {
	own, other, far, second := newModel(t, "m", "g"), newModel(t, "n", ""), newModel(t, "n", "g"), newModel(t, "o", "")
	s := New(Config{Models: func() []*Model { return []*Model{own, other, far, second} }, Named: func(name string) [][]Named {
		if name != "x" {
			return nil
		}
		return [][]Named{{{Model: own}}, {{Model: other, Lora: "x", Workers: []uint64{1}}, {Model: far}, {Model: second}}}
	}})
	for fields, want := range map[string]string{
		`"model_name":"x"`: "m", `"model_name":"x","routing_group":"g"`: "m", `"model_name":"x","routing_group":"default"`: "n",
		`"model_name":"x","routing_group":"h"`: `unknown_group`, `"model_name":"x","block_size":8`: `unknown_group`, `"model_name":"m"`: `unknown_model`,
	} {
		if a := ask(t, s, "POST", "/v1/select", `{`+fields+`,"token_ids":[1]}`); !strings.Contains(string(a.Body), `"`+want+`"`) {
			t.Errorf("%s: %s, want %s", fields, a.Body, want)
		}
	}
	a := ask(t, s, "POST", "/v1/select", `{"model_name":"x","routing_group":"default","token_ids":[1],"allowed_worker_ids":[0,1]}`)
	if !strings.Contains(string(a.Body), `"worker_id":1,`) || !strings.Contains(string(a.Body), `"lora_name":"x"`) {
		t.Errorf("%s", a.Body)
	}
}

func TestReservations(t *testing.T) {
	m := newModel(t, "m", "")
	s := service(newModel(t, "a", ""), m)
	ok := `{"status":"ok"}`
	want(t, ask(t, s, "POST", "/v1/reservations", `{"selection_id":"x/y","model_name":"m","worker_id":1,"dp_rank":0,"sequence_hashes":[1,-2],"isl_tokens":10,"effective_prefill_tokens":6}`),
		201, `{"selection_id":"x/y"}`)
	loads := func(prefill, blocks, requests int) {
		t.Helper()
		want(t, ask(t, s, "GET", "/v1/loads?model_name=m&routing_group=default", ""), 200, fmt.Sprintf(
			`[{"model_name":"m","routing_group":"default","block_size":4,"worker_id":0,"dp_rank":0,"active_prefill_tokens":0,"active_decode_blocks":0,"active_requests":0},`+
				`{"model_name":"m","routing_group":"default","block_size":4,"worker_id":1,"dp_rank":0,"active_prefill_tokens":%d,"active_decode_blocks":%d,"active_requests":%d},`+
				`{"model_name":"m","routing_group":"default","block_size":4,"worker_id":2,"dp_rank":0,"active_prefill_tokens":0,"active_decode_blocks":0,"active_requests":0}]`,
			prefill, blocks, requests))
	}
	loads(6, 2, 1)
	want(t, ask(t, s, "POST", "/v1/potential_loads", `{"model_name":"m",`+tokens9+`}`), 200,
		`[{"worker_id":0,"dp_rank":0,"potential_prefill_tokens":9,"potential_decode_blocks":2,"active_requests":0},`+
			`{"worker_id":1,"dp_rank":0,"potential_prefill_tokens":15,"potential_decode_blocks":4,"active_requests":1},`+
			`{"worker_id":2,"dp_rank":0,"potential_prefill_tokens":1,"potential_decode_blocks":2,"active_requests":0}]`)
	for _, path := range []string{"prefill_complete", "prefill_complete", "output_block"} {
		want(t, ask(t, s, "POST", "/v1/reservations/x%2Fy/"+path, ""), 200, ok)
	}
	want(t, ask(t, s, "POST", "/v1/reservations/x%2Fy/output_block", `{"decay_fraction":0.5}`), 200, ok)
	want(t, ask(t, s, "POST", "/v1/reservations/x%2Fy/output", `{"tokens":3}`), 200, ok)
	if got := m.Router.Loads()[1]; got.PrefillTokens != 0 || got.Requests != 1 {
		t.Errorf("after the first token: %+v", got)
	}
	want(t, ask(t, s, "DELETE", "/v1/reservations/x%2Fy", ""), 200, ok)
	loads(0, 0, 0)
	gone := `{"error":{"field":"selection_id","reason":"unknown_selection","message":"no live reservation has this id: it was freed, its lease ended, or its worker is gone"}}`
	want(t, ask(t, s, "DELETE", "/v1/reservations/x%2Fy", ""), 404, gone)
	want(t, ask(t, s, "POST", "/v1/reservations/x%2Fy/output", `{"tokens":3}`), 404, gone)
	want(t, ask(t, s, "GET", "/v1/loads?model_name=other", ""), 200, `[]`)
}

// Who places requests itself tells which failed: a worker that fails at three in a row
// is left out, and one that is full at once; a failure told twice counts once.
func TestFailedReservations(t *testing.T) {
	m := newModel(t, "m", "")
	s := service(m)
	ok := `{"status":"ok"}`
	n := 0
	fail := func(worker int, body string) {
		t.Helper()
		n++
		want(t, ask(t, s, "POST", "/v1/reservations", fmt.Sprintf(`{"selection_id":"r%d","model_name":"m","worker_id":%d,"isl_tokens":4}`, n, worker)), 201, fmt.Sprintf(`{"selection_id":"r%d"}`, n))
		want(t, ask(t, s, "POST", fmt.Sprintf("/v1/reservations/r%d/failed", n), body), 200, ok)
		want(t, ask(t, s, "POST", fmt.Sprintf("/v1/reservations/r%d/failed", n), body), 200, ok)
		if !m.Router.Holds(fmt.Sprintf("r%d", n)) {
			t.Error("the reservation is gone")
		}
		want(t, ask(t, s, "DELETE", fmt.Sprintf("/v1/reservations/r%d", n), ""), 200, ok)
	}
	states := func(expected ...string) {
		t.Helper()
		var got []string
		for _, h := range m.Router.Health() {
			got = append(got, h.State.String())
		}
		if fmt.Sprint(got) != fmt.Sprint(expected) {
			t.Errorf("%v, want %v", got, expected)
		}
	}
	fail(1, "")
	fail(1, `{"phase":"prefill"}`) // which it does not have
	fail(1, `{}`)
	states("closed", "closed", "closed")
	fail(1, `{"full":false}`)
	states("closed", "open", "closed")
	fail(2, `{"full":true,"retry_after_seconds":20,"phase":"aggregated"}`)
	states("closed", "open", "full")
	if got := ask(t, s, "POST", "/v1/select", `{"model_name":"m",`+tokens9+`}`); !strings.Contains(string(got.Body), `"worker_id":0`) {
		t.Errorf("%s", got.Body)
	}
	want(t, ask(t, s, "POST", "/v1/reservations/none/failed", ""), 404, `{"error":{"field":"selection_id","reason":"unknown_selection","message":"no live reservation has this id: it was freed, its lease ended, or its worker is gone"}}`)
	if got := ask(t, s, "POST", "/v1/reservations/none/failed", `{"full":1}`); got.Status != 400 || got.Reason != "wrong_type" {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

// Every refusal names its field and changes nothing.
func TestRefusals(t *testing.T) {
	models := []*Model{newModel(t, "m", ""), newModel(t, "g", "one"), newModel(t, "g", "two")}
	s := service(models...)
	for _, c := range []struct {
		method, path, body string
		status             int
		field, reason      string
	}{
		{"POST", "/v1/select", ``, 400, "body", "malformed_json"},
		{"POST", "/v1/select", `[]`, 400, "body", "wrong_type"},
		{"POST", "/v1/select", `{} x`, 400, "body", "malformed_json"},
		{"POST", "/v1/select", "{\"model_name\":\"\xff\"}", 400, "body", "malformed_json"},
		{"POST", "/v1/select", `{"model_name":"m"`, 400, "body", "malformed_json"},
		{"POST", "/v1/select", `{}`, 400, "token_ids", "missing"},
		{"POST", "/v1/select", `{` + tokens9 + `}`, 400, "model_name", "missing"},
		{"POST", "/v1/select", `{"model_name":3}`, 400, "model_name", "wrong_type"},
		{"POST", "/v1/select", `{"model":"m"}`, 400, "model", "unknown_field"},
		{"POST", "/v1/select", `{"model_name":"m",` + tokens9 + `,"ttft_target_ms":-1}`, 400, "ttft_target_ms", "out_of_range"},
		{"POST", "/v1/select", `{"model_name":"m",` + tokens9 + `,"itl_target_ms":"x"}`, 400, "itl_target_ms", "wrong_type"},
		{"POST", "/v1/select", `{"nothing":null}`, 400, "nothing", "unknown_field"},
		{"POST", "/v1/select", `{"model_name":"m","model_name":"m"}`, 400, "model_name", "duplicate_field"},
		{"POST", "/v1/select", `{"model_name":"x",` + tokens9 + `}`, 404, "model_name", "unknown_model"},
		{"POST", "/v1/select", `{"model_name":"g","routing_group":"three",` + tokens9 + `}`, 404, "routing_group", "unknown_group"},
		{"POST", "/v1/select", `{"model_name":"g",` + tokens9 + `}`, 404, "routing_group", "unknown_group"},
		{"POST", "/v1/select", `{"model_name":"m","block_size":16,` + tokens9 + `}`, 400, "block_size", "block_size_mismatch"},
		{"POST", "/v1/select", `{"token_ids":[1,-1]}`, 400, "token_ids[1]", "negative"},
		{"POST", "/v1/select", `{"token_ids":[1.5]}`, 400, "token_ids[0]", "not_integer"},
		{"POST", "/v1/select", `{"token_ids":[4294967296]}`, 400, "token_ids[0]", "out_of_range"},
		{"POST", "/v1/select", `{"token_ids":["x"]}`, 400, "token_ids[0]", "not_integer"},
		{"POST", "/v1/select", `{"token_ids":{}}`, 400, "token_ids", "wrong_type"},
		{"POST", "/v1/select", `{"token_ids":[` + strings.Repeat("1,", 64) + `1]}`, 400, "token_ids", "too_many"},
		{"POST", "/v1/select", `{"block_hashes":[18446744073709551616]}`, 400, "block_hashes[0]", "out_of_range"},
		{"POST", "/v1/select", `{"block_hashes":[1],` + tokens9 + `}`, 400, "block_hashes", "conflict"},
		{"POST", "/v1/select", `{"block_hashes":[1],"cache_salt":"s"}`, 400, "block_hashes", "conflict"},
		{"POST", "/v1/select", `{"model_name":"m","block_hashes":[1],"sequence_hashes":[1,2]}`, 400, "sequence_hashes", "conflict"},
		{"POST", "/v1/select", `{"model_name":"m","block_hashes":[1],"isl_tokens":9}`, 400, "isl_tokens", "conflict"},
		{"POST", "/v1/select", `{"isl_tokens":8,` + tokens9 + `}`, 400, "isl_tokens", "conflict"},
		{"POST", "/v1/select", `{"overlap_score_weight":-1}`, 400, "overlap_score_weight", "out_of_range"},
		{"POST", "/v1/select", `{"router_temperature":"1"}`, 400, "router_temperature", "wrong_type"},
		{"POST", "/v1/select", `{"explain":1}`, 400, "explain", "wrong_type"},
		{"POST", "/v1/select", `{"phase":"both"}`, 400, "phase", "out_of_range"},
		{"POST", "/v1/select", `{"selection_id":"` + strings.Repeat("x", 600) + `",` + tokens9 + `}`, 400, "selection_id", "out_of_range"},
		{"POST", "/v1/select", `{"model_name":"m","worker_id":9,` + tokens9 + `}`, 503, "model_name", "no_worker"},
		{"POST", "/v1/select", strings.Repeat(" ", 5000), 413, "body", "body_too_large"},
		{"GET", "/v1/select", ``, 405, "method", "method_not_allowed"},
		{"POST", "/v1/loads", ``, 405, "method", "method_not_allowed"},
		{"GET", "/v1/loads?x=1", ``, 400, "x", "unknown_argument"},
		{"POST", "/v1/reservations", `{}`, 400, "selection_id", "missing"},
		{"POST", "/v1/reservations", `{"selection_id":"a"}`, 400, "worker_id", "missing"},
		{"POST", "/v1/reservations", `{"selection_id":"a","worker_id":1}`, 400, "isl_tokens", "missing"},
		{"POST", "/v1/reservations", `{"selection_id":"a","worker_id":1,"isl_tokens":1,"effective_prefill_tokens":2}`, 400, "effective_prefill_tokens", "out_of_range"},
		{"POST", "/v1/reservations", `{"selection_id":"a","model_name":"m","worker_id":9,"isl_tokens":1}`, 404, "worker_id", "unknown_worker"},
		{"POST", "/v1/reservations/a/other", ``, 404, "path", "unknown_route"},
		{"POST", "/v1/reservations/", ``, 404, "path", "unknown_route"},
		{"POST", "/v1/reservations/%zz/output", ``, 404, "path", "unknown_route"},
		{"GET", "/v1/reservations/a", ``, 405, "method", "method_not_allowed"},
		{"POST", "/v1/reservations/a/output", `{}`, 400, "tokens", "missing"},
		{"POST", "/v1/reservations/a/output_block", `{"decay_fraction":2}`, 400, "decay_fraction", "out_of_range"},
	} {
		a := ask(t, s, c.method, c.path, c.body)
		var got struct {
			Error struct{ Field, Reason, Message string }
		}
		if err := json.Unmarshal(a.Body, &got); err != nil {
			t.Errorf("%s %s: %v: %s", c.path, c.body, err, a.Body)
		}
		if a.Status != c.status || got.Error.Field != c.field || got.Error.Reason != c.reason || got.Error.Message == "" || a.Reason != c.reason {
			t.Errorf("%s %s %.80s: %d %s, want %d %s %s", c.method, c.path, c.body, a.Status, a.Body, c.status, c.field, c.reason)
		}
		if (a.Status == 405) != (a.Allow != "") {
			t.Errorf("%s %s: Allow %q", c.method, c.path, a.Allow)
		}
		if !Owns(strings.Split(c.path, "?")[0]) {
			t.Errorf("%s is not owned", c.path)
		}
	}
	for _, m := range models {
		if got := m.Router.Stats(); got.Live != 0 || got.Booked != 0 {
			t.Errorf("refused requests have changed %s: %+v", m.Model, got)
		}
	}
	octets := s.Serve(t.Context(), Request{Method: "POST", Path: "/v1/select", ContentType: "application/octet-stream"})
	if octets.Status != 415 || Owns("/v1/completions") || Owns("/v1/selects") {
		t.Errorf("octets: %d", octets.Status)
	}
}

// The statuses and nulls of Dynamo's frontend.
func TestBusyThreshold(t *testing.T) {
	m := newModel(t, "m", "")
	s := service(m, newModel(t, "m", "g"), newModel(t, "n", ""))
	const (
		none = `{"model":"m","active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":null,"active_prefill_tokens_threshold_frac":null}`
		both = `{"model":"m","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":1000,"active_prefill_tokens_threshold_frac":null}`
		zero = `{"model":"m","active_decode_blocks_threshold":0,"active_prefill_tokens_threshold":1000,"active_prefill_tokens_threshold_frac":1.5}`
	)
	for _, c := range []struct {
		method, body string
		status       int
		answer       string
	}{
		{"GET", ``, 200, `{"thresholds":[]}`},
		{"POST", `{"model":"m"}`, 200, none},
		{"POST", `{"model":"m","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":1000}`, 200, both},
		{"POST", `{"model":"m","active_decode_blocks_threshold":null}`, 200, both},
		{"GET", ``, 200, `{"thresholds":[` + both + `]}`},
		{"POST", `{"model":"m","active_decode_blocks_threshold":0,"active_prefill_tokens_threshold_frac":1.5}`, 200, zero},
		{"POST", `{"model":"x"}`, 200, strings.Replace(none, `"m"`, `"x"`, 1)},
		{"POST", `{"model":"x","active_decode_blocks_threshold":0.5}`, 404, `{"error":"model: no worker serves this model"}`},
		{"POST", `{"model":"m","active_decode_blocks_threshold":1.5}`, 400, `{"error":"active_decode_blocks_threshold: must be between 0 and 1"}`},
		{"POST", `{"model":"m"`, 400, `{"error":"body: at byte 12: JSON ends too early"}`},
		{"POST", `{"model":""}`, 400, `{"error":"model: the name is empty"}`},
		{"POST", `{}`, 422, `{"error":"model: name the model"}`},
		{"POST", `{"model":null}`, 422, `{"error":"model: name the model"}`},
		{"POST", `{"model":5}`, 422, `{"error":"model: must be a text"}`},
		{"POST", `{"model":"m","active_prefill_tokens_threshold":-1}`, 422, `{"error":"active_prefill_tokens_threshold: must be a whole number between 0 and 9007199254740991"}`},
		{"POST", `{"model":"m","active_decode_blocks_threshold":"x"}`, 422, `{"error":"active_decode_blocks_threshold: must be a number"}`},
		{"PUT", `{"model":"m"}`, 405, `{"error":"method: use GET, POST on this route"}`},
		{"POST", strings.Repeat(" ", 5000), 413, `{"error":"body: the body is larger than 4096 bytes"}`},
	} {
		a := ask(t, s, c.method, "/busy_threshold", c.body)
		if got := strings.TrimSpace(string(a.Body)); a.Status != c.status || got != c.answer {
			t.Errorf("%s %.80s: %d %s\nwant %d %s", c.method, c.body, a.Status, got, c.status, c.answer)
		}
	}
	if a := ask(t, s, "POST", "/busy_threshold", `{"model":"m","busy":1}`); a.Status != 422 {
		t.Errorf("an unknown field: %d %s", a.Status, a.Body)
	}
	for _, content := range []string{"", "text/plain", "application/x-www-form-urlencoded"} {
		if a := s.Serve(t.Context(), Request{Method: "POST", Path: "/busy_threshold", ContentType: content, Body: []byte(`{"model":"m"}`)}); a.Status != http.StatusUnsupportedMediaType {
			t.Errorf("%q: %d %s", content, a.Status, a.Body)
		}
	}
}

// Thresholds of a group are listed though those of one before it are not set.
func TestThresholdsOfOneGroup(t *testing.T) {
	first, second := newModel(t, "m", ""), newModel(t, "m", "g")
	few := 7
	if _, err := second.Router.SetThresholds(route.Thresholds{PrefillTokens: &few}); err != nil {
		t.Fatal(err)
	}
	if a := ask(t, service(first, second), "GET", "/busy_threshold", ``); !strings.Contains(string(a.Body), `"active_prefill_tokens_threshold":7`) {
		t.Errorf("%s", a.Body)
	}
}

// What is set makes workers busy, and all busy is an answer of its own.
func TestOverloaded(t *testing.T) {
	m := newModel(t, "m", "")
	s := service(m)
	ask(t, s, "POST", "/busy_threshold", `{"model":"m","active_prefill_tokens_threshold":8}`)
	for range 3 {
		if a := ask(t, s, "POST", "/v1/select_and_reserve", `{"model_name":"m","token_ids":[90,91,92,93,94,95,96,97,98]}`); a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	a := ask(t, s, "POST", "/v1/select_and_reserve", `{"model_name":"m",`+tokens9+`}`)
	if a.Status != StatusOverloaded || a.Reason != "overloaded" || !strings.Contains(string(a.Body), "busy") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if n := m.Router.Stats().Live; n != 3 {
		t.Errorf("%d bookings", n)
	}
}

// FuzzServe: any body is answered with JSON and a status of the documented
// ones, and only select_and_reserve and reservations book.
func FuzzServe(f *testing.F) {
	f.Add(uint8(0), []byte(`{"selection_id":"a","model_name":"m","token_ids":[0,1,2,3]}`))
	f.Add(uint8(1), []byte(`{"model_name":"m","block_hashes":[-1,"2"],"isl_tokens":9,"explain":true}`))
	f.Add(uint8(2), []byte(`{"model":"m","active_decode_blocks_threshold":1e-3}`))
	f.Add(uint8(3), []byte(`{"selection_id":"a","model_name":"m","worker_id":1,"isl_tokens":1}`))
	paths := []string{"/v1/select", "/v1/select_and_reserve", "/busy_threshold", "/v1/reservations", "/v1/potential_loads", "/v1/reservations/a/output"}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		m := newModel(t, "m", "")
		path := paths[int(which)%len(paths)]
		a := ask(t, service(m), "POST", path, string(body))
		if !json.Valid(a.Body) {
			t.Errorf("%s %q: %q is no JSON", path, body, a.Body)
		}
		switch a.Status {
		case 200, 201, 400, 404, 413, 422, 503, StatusOverloaded:
		default:
			t.Errorf("%s %q: %d %s", path, body, a.Status, a.Body)
		}
		if live := m.Router.Stats().Live; live != 0 && (a.Status >= 300 || path != paths[1] && path != paths[3]) {
			t.Errorf("%s %q: %d, and %d bookings", path, body, a.Status, live)
		}
	})
}
