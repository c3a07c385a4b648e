package discover

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/discover/kube"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/kubetest"
)

func newFleet() *Fleet {
	return &Fleet{Prefix: "k8s/n/x/", Most: 3, Least: time.Second, Longest: time.Minute,
		Defaults: Defaults{Ports: []uint16{8000}, Events: 5557}}
}

func pod(t *testing.T, name, uid, ip string, notes ...string) Pod {
	t.Helper()
	list := map[string]string{}
	for i := 0; i < len(notes); i += 2 {
		list[notes[i]] = notes[i+1]
	}
	text, err := json.Marshal(kubetest.Pod(name, uid, ip, nil, list))
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParsePod(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// stands returns where the ranks of a pod stand.
func (f *Fleet) stands(name string) string {
	var list []string
	for _, e := range f.pods[name] {
		list = append(list, e.state.String())
	}
	return strings.Join(list, " ")
}

func (f *Fleet) names() string {
	var list []string
	for p := range f.Wanted() {
		list = append(list, p.Name+"="+p.Model)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// A pod's life: no address, not ready, asked in vain, asked, wanted, not ready any more,
// another address, another pod, ended.
func TestAPodsLife(t *testing.T) {
	f, now := newFleet(), time.Unix(1e9, 0)
	p := pod(t, "a", "1", "")
	p.Ready = false
	is := func(what, state, names string) {
		t.Helper()
		if f.stands("a") != state || f.names() != names {
			t.Fatalf("%s: %q and %q, want %q and %q", what, f.stands("a"), f.names(), state, names)
		}
	}
	f.Stored(p)
	is("without an address", "waiting", "")
	p.IP = "10.0.0.1"
	f.Stored(p)
	is("not ready", "waiting", "")
	p.Ready = true
	f.Stored(p)
	is("ready", "asking", "")
	asks, _ := f.Due(now, 5)
	if len(asks) != 1 || asks[0].URL != "http://10.0.0.1:8000" {
		t.Fatal(asks)
	}
	if again, next := f.Due(now, 5); len(again) != 0 || !next.IsZero() {
		t.Fatal("it is asked twice at once", again, next)
	}
	f.Answered(asks[0], Facts{}, errors.New("it does not answer"), now, now)
	if again, next := f.Due(now, 5); len(again) != 0 || !next.After(now) {
		t.Fatal("it is asked again at once", again, next)
	}
	now = now.Add(time.Minute)
	if asks, _ = f.Due(now, 5); len(asks) != 1 {
		t.Fatal("it is not asked again")
	}
	f.Answered(asks[0], Facts{Model: "m"}, nil, now, now)
	is("without a block size", "asking", "")
	if _, _, why := f.Count(); !strings.Contains(why, "block size") {
		t.Error(why)
	}
	now = now.Add(2 * time.Minute)
	asks, _ = f.Due(now, 5)
	f.Answered(asks[0], Facts{Model: "m", BlockSize: 32}, nil, now, now)
	is("known", "wanted", "k8s/n/x/a=m")
	p.Ready = false
	f.Stored(p)
	is("not ready any more", "wanted", "k8s/n/x/a=m")
	p.Ready, p.IP = true, "10.0.0.2"
	f.Stored(p)
	is("at another address", "asking", "")
	f.Answered(asks[0], Facts{Model: "old", BlockSize: 32}, nil, now, now)
	is("after a late answer of the first", "asking", "")
	p.UID = "2"
	p.Notes = map[string]string{noteModel: "n", noteBlockSize: "64"}
	f.Stored(p)
	is("another pod with annotations", "wanted", "k8s/n/x/a=n")
	p.Ended = true
	f.Stored(p)
	is("ended", "", "")
}

// What is registered of a pod.
func TestWorkerOfAPod(t *testing.T) {
	full := []string{noteModel, "org/m", noteBlockSize, "32", noteGroup, "g", noteRole, "prefill", noteKVTransfer, "sglang",
		noteEngineScheme, "s", noteCredential, "c", noteEvents, "6000", noteReplay, "7000", noteBootstrap, "8998", notePeer, "7777",
		"kvatlas/hybrid", "true", "kvatlas/cache-groups", `[{"number": 1, "kind": "sliding_window", "block_size": 16, "span": 512}]`, "kvatlas/tiers", `["device", "disk"]`,
		"kvatlas/total-blocks", "1000", "kvatlas/max-batched-tokens", "8192", "kvatlas/cpu", "true", "kvatlas/lora-ids", `{"1": "sql"}`, "kvatlas/pools", `[{"name": "mooncake"}]`}
	for _, c := range []struct {
		name  string
		notes []string
		ports []uint16
		want  string // bodies, or the state and why
	}{
		{"all annotations", full, []uint16{8000},
			`{"worker_id":"k8s/n/x/a","model":"org/m","block_size":32,"group":"g","hybrid":true,"cache_groups":[{"number":1,"kind":"sliding_window","block_size":16,"span":512}],"engine_scheme":"s","dp_ranks":[0],` +
				`"tiers":["device","disk"],"total_blocks":1000,"max_batched_tokens":8192,"role":"prefill","kv_transfer":"sglang","cpu":true,"credential":"c","transport":"zmq",` +
				`"endpoints":{"http":"http://10.0.0.1:8000","bootstrap":"10.0.0.1:8998","peer":"10.0.0.1:7777","events":{"0":"tcp://10.0.0.1:6000"},"replay":{"0":"tcp://10.0.0.1:7000"}},` +
				`"lora_ids":{"1":"sql"},"pools":[{"name":"mooncake"}]}`},
		{"ranks", []string{noteModel, "m", noteBlockSize, "16"}, []uint16{8000, 8001},
			`{"worker_id":"k8s/n/x/a-rank-0","model":"m","block_size":16,"dp_ranks":[0],"transport":"zmq","endpoints":{"http":"http://10.0.0.1:8000","events":{"0":"tcp://10.0.0.1:5557"}}}` +
				`{"worker_id":"k8s/n/x/a-rank-1","model":"m","block_size":16,"dp_ranks":[1],"transport":"zmq","endpoints":{"http":"http://10.0.0.1:8001","events":{"1":"tcp://10.0.0.1:5558"}}}`},
		{"no events", []string{noteModel, "m", noteBlockSize, "16", noteEvents, "none"}, []uint16{8000},
			`{"worker_id":"k8s/n/x/a","model":"m","block_size":16,"dp_ranks":[0],"transport":"none","endpoints":{"http":"http://10.0.0.1:8000"}}`},
		{"ranks behind one port", []string{noteModel, "m", noteBlockSize, "16", noteRanks, "2-3", noteReplay, "7000"}, []uint16{8000},
			`{"worker_id":"k8s/n/x/a","model":"m","block_size":16,"dp_ranks":[2,3],"transport":"zmq","endpoints":{"http":"http://10.0.0.1:8000",` +
				`"events":{"2":"tcp://10.0.0.1:5559","3":"tcp://10.0.0.1:5560"},"replay":{"2":"tcp://10.0.0.1:7002","3":"tcp://10.0.0.1:7003"}}}`},
		{"mooncake", []string{noteModel, "m", noteBlockSize, "16", noteEvents, "none", noteRanks, "0", noteRole, "prefill", noteKVTransfer, "mooncake"}, []uint16{8000},
			`{"worker_id":"k8s/n/x/a","model":"m","block_size":16,"dp_ranks":[0],"role":"prefill","kv_transfer":"mooncake","transport":"none","endpoints":{"http":"http://10.0.0.1:8000"}}`},
		{"ranks of two", []string{noteModel, "m", noteBlockSize, "16", noteRanks, "0-3"}, []uint16{8000, 8001}, `refused a rank at each`},
		{"no ranks", []string{noteModel, "m", noteBlockSize, "16", noteRanks, "3-0"}, []uint16{8000}, `refused "3-0"`},
		{"too many ranks", []string{noteModel, "m", noteBlockSize, "16", noteRanks, "0-1024"}, []uint16{8000}, `refused "0-1024"`},
		{"its publisher", []string{noteRegisteredBy, "publisher"}, []uint16{8000}, "publisher"},
		{"role", []string{noteModel, "m", noteBlockSize, "16", noteRole, "both"}, []uint16{8000}, `refused "both"`},
		{"block size", []string{noteModel, "m", noteBlockSize, "0x10"}, []uint16{8000}, `refused "0x10"`},
		{"port", []string{noteModel, "m", noteBlockSize, "16", noteEvents, "evil:1"}, []uint16{8000}, `refused "evil:1"`},
		{"no JSON", []string{noteModel, "m", noteBlockSize, "16", "kvatlas/tiers", "device"}, []uint16{8000}, `refused no JSON`},
		{"another field", []string{noteModel, "m", noteBlockSize, "16", "kvatlas/total-blocks", `1, "model": "n"`}, []uint16{8000}, `refused no JSON`},
		{"tier", []string{noteModel, "m", noteBlockSize, "16", "kvatlas/tiers", `["moon"]`}, []uint16{8000}, `refused tier "moon" is not known`},
		{"cache groups", []string{noteModel, "m", noteBlockSize, "16", "kvatlas/cache-groups", `[{"nummer": 1}]`}, []uint16{8000}, `refused unknown field "nummer"`},
		{"pools", []string{noteModel, "m", noteBlockSize, "16", "kvatlas/pools", `[{}]`}, []uint16{8000}, `refused pod a: its annotations kvatlas/*: these pools`},
		{"a long text", []string{noteModel, "m", noteBlockSize, "16", noteCredential, strings.Repeat("c", 1025)}, []uint16{8000}, `refused a text is longer`},
		{"peer", []string{noteModel, "m", noteBlockSize, "16", notePeer, "evil:1"}, []uint16{8000}, `refused "evil:1"`},
		{"last port", []string{noteModel, "m", noteBlockSize, "16", noteEvents, "65535"}, []uint16{1, 2}, `wanted refused rank 1`},
	} {
		f := newFleet()
		f.Serve(c.ports)
		f.Stored(pod(t, "a", "1", "10.0.0.1", c.notes...))
		var got string
		if strings.HasPrefix(c.want, "{") {
			bodies := slices.Sorted(maps.Values(f.Wanted()))
			got = strings.Join(bodies, "")
		} else if _, _, why := f.Count(); strings.Contains(c.want, "refused") {
			state, part, _ := strings.Cut(c.want, "refused ")
			if got = f.stands("a") + " " + why; strings.HasPrefix(got, state+"refused") && strings.Contains(why, part) {
				got = c.want
			}
		} else {
			got = f.stands("a")
		}
		if got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

// A whole list replaces what was known, keeps what was learned, and has its bound.
func TestReplacedAndTheBound(t *testing.T) {
	f, now := newFleet(), time.Unix(1e9, 0)
	var pods []Pod
	for i := range 4 {
		pods = append(pods, pod(t, fmt.Sprint("p", i), "u", fmt.Sprint("10.0.0.", i)))
	}
	f.Replaced(pods[:2])
	asks, _ := f.Due(now, 5)
	for _, a := range asks {
		f.Answered(a, Facts{Model: "m", BlockSize: 16}, nil, now, now)
	}
	f.Replaced(pods[1:])
	if got := f.names(); got != "k8s/n/x/p1=m" || !f.Synced() {
		t.Errorf("after another list: %q", got)
	}
	f.Stored(pods[0])
	if _, beyond, _ := f.Count(); beyond != 1 {
		t.Errorf("%d pods beyond the limit, want 1", beyond)
	}
	if asks, _ = f.Due(now, 5); len(asks) != 2 {
		t.Errorf("%d engines to ask, want the 2 that are new", len(asks))
	}
}

// A pod that a list has, and that cannot be read, is as it was; of what a former run registered
// nothing departs that may be its. Without a name it may be any.
func TestPodsThatCannotBeRead(t *testing.T) {
	cfg := Config{Kube: kube.Config{URL: "http://api"}, Namespace: "n", Selector: "a=b", Name: "x", MaxPods: 100, Model: "m", BlockSize: 16,
		HTTPPort: 8000, Every: time.Minute, Retry: time.Second, Timeout: time.Second, Concurrency: 8}
	d, err := newDiscovery(&cfg, obs.NewMetrics(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	good := func(name string) json.RawMessage {
		text, err := json.Marshal(kubetest.Pod(name, "u", "10.0.0.1", nil, nil))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	odd := func(name string) json.RawMessage {
		return json.RawMessage(`{"metadata":{"name":"` + name + `"},"status":{"podIP":7}}`)
	}
	nameless := json.RawMessage(`{"metadata":7}`)
	for i, step := range []struct {
		kind    kube.Kind
		objects []json.RawMessage
		wanted  string
		stay    string // of former, as well
		unread  uint64 // so far
	}{
		{kube.Replaced, []json.RawMessage{good("a"), odd("f")}, "a", "f f-rank-1", 1},
		{kube.Replaced, []json.RawMessage{good("a"), good("b"), good("c")}, "a b c", "", 1},
		{kube.Replaced, []json.RawMessage{odd("a"), good("b")}, "a b", "a", 2},
		{kube.Stored, []json.RawMessage{good("a")}, "a b", "", 2},
		{kube.Stored, []json.RawMessage{odd("b")}, "a b", "b", 3},
		{kube.Deleted, []json.RawMessage{odd("b")}, "a", "", 3},
		{kube.Stored, []json.RawMessage{nameless}, "a", "", 4},
		{kube.Replaced, []json.RawMessage{good("d"), nameless}, "a d", "a f f-rank-1 g b", 5},
		{kube.Deleted, []json.RawMessage{good("a")}, "d", "a f f-rank-1 g b", 5},
		{kube.Replaced, []json.RawMessage{good("d")}, "d", "", 5},
	} {
		d.onPods(kube.Change{Kind: step.kind, Objects: step.objects})
		var names, stay []string
		for p := range d.fleet.Wanted() {
			names = append(names, strings.TrimPrefix(p.Name, d.fleet.Prefix))
		}
		if slices.Sort(names); strings.Join(names, " ") != step.wanted || d.status.unparsed != step.unread {
			t.Errorf("step %d: %q are wanted, want %s; %d could not be read, want %d", i, names, step.wanted, d.status.unparsed, step.unread)
		}
		for _, name := range []string{"a", "f", "f-rank-1", "g", "b"} { // registered by a former run
			if !d.fleet.Departs(d.fleet.Prefix + name) {
				stay = append(stay, name)
			}
		}
		if strings.Join(stay, " ") != step.stay {
			t.Errorf("step %d: %q stay, want %q", i, stay, step.stay)
		}
	}
}

// A pool is its labels and ports.
func TestParsePool(t *testing.T) {
	p, err := ParsePool([]byte(`{"spec":{"selector":{"matchLabels":{"b":"2","a":"1"}},"targetPorts":[{"number":8000},{"number":8001}]}}`))
	if err != nil || p.Selector != "a=1,b=2" || !slices.Equal(p.Ports, []uint16{8000, 8001}) {
		t.Error(p, err)
	}
	for _, text := range []string{`{}`, `[]`, `{"spec":{"selector":{"matchLabels":{"a":"1"}},"targetPorts":[{"number":80000}]}}`, `{"spec":{"selector":{},"targetPorts":[{"number":8000}]}}`} {
		if _, err := ParsePool([]byte(text)); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
}

// vLLM's block size, as its metrics have it.
func TestVLLMBlockSize(t *testing.T) {
	for text, want := range map[string]uint32{
		"# HELP x\nvllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\"} 1.0\n":            16,
		"vllm:cache_config_info{cache_dtype=\"auto\",block_size=\"128\",hash_block_size=\"9\"} 1\n": 128,
		"vllm:cache_config_info{hash_block_size=\"9\"} 1\n":                                         0,
		"other{block_size=\"16\"} 1\n":                                                              0,
	} {
		if n, err := vllmBlockSize(strings.NewReader(text)); n != want || err != nil {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
}

// FuzzObjects: no object of the API server makes a panic, or a worker elsewhere than at
// its pod's address.
func FuzzObjects(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","annotations":{"kvatlas/model":"m","kvatlas/block-size":"16"}},"status":{"podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}`))
	f.Add([]byte(`{"metadata":{"name":"a"},"status":{"podIP":"10.0.0.1:80/x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, _ = ParsePool(text) // most are none
		p, err := ParsePod(text)
		if err != nil {
			return
		}
		fleet := newFleet()
		fleet.Stored(p)
		for _, body := range fleet.Wanted() {
			var w struct{ Endpoints struct{ HTTP string } }
			if err := json.Unmarshal([]byte(body), &w); err != nil || strings.ContainsAny(strings.TrimPrefix(w.Endpoints.HTTP, "http://"), "/@?#") {
				t.Errorf("%s: %v", body, err)
			}
		}
	})
}
