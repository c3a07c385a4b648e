package registry

import (
	"math"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

func TestAllow(t *testing.T) {
	if _, err := ParseAllow([]string{"[2001:db8::]/32"}); err == nil {
		t.Fatal("a bracketed network was accepted")
	}
	a, err := ParseAllow([]string{"10.0.0.0/8", "192.168.1.7:5557", "*.engines.example", "gw.example:80", "fd00::/8", "ipc:///run/kv/*"})
	if err != nil {
		t.Fatal(err)
	}
	for endpoint, want := range map[string]bool{
		"tcp://10.200.3.4:1": true, "tcp://11.0.0.1:1": false, "tcp://[::ffff:10.0.0.1]:5": true,
		"tcp://192.168.1.7:5557": true, "tcp://192.168.1.7:5558": false,
		"tcp://a.engines.example:5557": true, "tcp://A.Engines.Example:5557": true, "tcp://engines.example:5557": false,
		"tcp://a.engines.example.evil.org:5557": false, "http://gw.example:80/v1": true, "http://gw.example/v1": false,
		"tcp://[fd00::1]:5557": true, "tcp://[fe80::1]:5557": false, "ipc:///run/kv/a": true, "ipc:///run/kv/../x": false,
		"ipc:///etc/a": false, "tcp://127.0.0.1:5557": false, "tcp://10.0.0.1": false, "tcp://u:p@10.0.0.1:5": false,
		"tcp://10.0.0.1:5/x": false, "10.0.0.1:5": false, "": false, "tcp://": false, "gopher://10.0.0.1:5": false,
		"tcp://0x0a000001:5": false, "tcp://*:5557": false,
	} {
		if err := a.Check(endpoint); (err == nil) != want {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	for endpoint, want := range map[string]bool{
		"tcp://127.0.0.1:5557": true, "tcp://localhost:5557": true, "tcp://[::1]:5557": true, "tcp://10.0.0.1:5557": false, "ipc:///x": false,
	} {
		if err := (Allow{}).Check(endpoint); (err == nil) != want {
			t.Errorf("by default, %s: %v", endpoint, err)
		}
	}
	for _, bad := range []string{"", "a/b", "[", "tcp://x:1"} {
		if _, err := ParseAllow([]string{bad}); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}

func TestStaticList(t *testing.T) {
	list, err := ParseStatic([]byte(`
- worker_id: 18446744073709551615
  model: org/model
  block_size: 16
  transport: zmq
  dp_ranks: [1, 0]
  endpoints: {events: {0: "tcp://127.0.0.1:5557", 1: "tcp://127.0.0.1:5558"}}
- {"worker_id": "vllm-0", "model": "org/model", "block_size": 16, "transport": "none", "total_blocks": 5, "tiers": ["GPU", "cpu"]}
`))
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if w := list[0]; w.ID != math.MaxUint64 || w.Endpoints.Events[1] != "tcp://127.0.0.1:5558" || w.Ranks[0] != 0 {
		t.Errorf("%+v", w)
	}
	if w := list[1]; w.ID != event.WorkerID("vllm-0") || w.Name != "vllm-0" || w.TotalBlocks != 5 || strings.Join(w.Tiers, " ") != "device host_pinned" {
		t.Errorf("%+v", w)
	}
	if list, err := ParseStatic(nil); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
	const good = `{worker_id: 1, model: m, block_size: 16, transport: zmq`
	for _, bad := range []string{
		"x", "{}", "- 5", "- {}", "- " + good + ", unknown: 1}", "- " + good + ", dp_ranks: x}", "[" + good + "}, " + good + "}]",
		"- {worker_id: -1, model: m, block_size: 16, transport: zmq}", "- {worker_id: 1, model: m, block_size: 16}",
		"- " + good + ", endpoints: {events: {3: x}}}", "- " + good + ", tiers: [moon]}", "- " + good + ", role: boss}", "- [",
	} {
		if list, err := ParseStatic([]byte(bad)); err == nil {
			t.Errorf("%s: accepted as %+v", bad, list)
		}
	}
}

// FuzzRoutes: whatever the body, the answer is a refusal or a valid worker.
func FuzzRoutes(f *testing.F) {
	f.Add([]byte(`{"instance_id":7,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16,"dp_rank":1,"replay_endpoint":"tcp://127.0.0.1:5"}`))
	f.Add([]byte(`{"endpoint":"tcp://127.0.0.1:5560","type":"vLLM","modelname":"m","instance_id":"vllm-0","block_size":16,"dp_rank":0,"additionalsalt":"s"}`))
	f.Add([]byte(`{"instance_id":null,"model_name":null}`))
	f.Add([]byte(`{"worker_id":18446744073709551615,"model":"m","group":"g","block_size":16,"transport":"none","dp_ranks":[0,3],"endpoints":{"http":"http://127.0.0.1:8000"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var q registration
		if no := q.parse(body); no != nil {
			return
		}
		list, no := q.workers(body, Allow{})
		if no != nil {
			return
		}
		for _, w := range list {
			if len(w.Ranks) != 1 || w.Model != q.model || w.ID != q.id || q.group != nil && w.Group != *q.group ||
				q.own == nil && w.Endpoints.Events[w.Ranks[0]] == "" || w.Endpoints.HTTP != "" && (Allow{}).Check(w.Endpoints.HTTP) != nil {
				t.Fatalf("%+v of %s", w, body)
			}
		}
	})
}
