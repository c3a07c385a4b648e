package registry

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What is allowed is what is dialled: neither an abstract socket in the place of
// a file, nor an address with something behind it.
func TestWhatIsAllowedIsWhatIsDialled(t *testing.T) {
	a, err := ParseAllow([]string{"127.0.0.1", "ipc:///run/kv/*", "ipc://@kv-*", "*.engines"})
	if err != nil {
		t.Fatal(err)
	}
	for endpoint, want := range map[string]bool{
		"ipc:///run/kv/a": true, "ipc://@/run/kv/a": false, "ipc://x@/run/kv/a": false, "ipc:///run/kv/a?x": true, "ipc:///run/kv/%2e%2e": true,
		"ipc:///run/kv/a/../../x": false, "ipc:///run/kv/../kv/a": false, "ipc://run/kv/a": false, "ipc://@kv-1": true, "ipc://kv-1": false, "ipc://": false,
		"tcp://127.0.0.1:5557": true, "tcp://127.0.0.1:5557?": false, "tcp://127.0.0.1:5557#x": false, "tcp://127.0.0.1:0": false,
		"tcp://127.0.0.1:65536": false, "tcp://127.0.0.1:99999999999999999999": false, "tcp://a.engines:5557": true, "tcp://A.engines:5557": true,
		"TCP://127.0.0.1:5557": false,
	} {
		if err := a.Check(endpoint); (err == nil) != want {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}

// Where replicas are to read a pool's own stream and its keys counts like the worker's own addresses.
func TestAddressesOfAPoolsSourceAreCompared(t *testing.T) {
	for source, status := range map[string]int{
		`"events":"tcp://127.0.0.1:5557","keys":"http://127.0.0.1:9003"`:   0,
		`"events":"tcp://10.0.0.1:5557","keys":"http://127.0.0.1:9003"`:    http.StatusForbidden,
		`"events":"ipc:///run/x","keys":"http://127.0.0.1:9003"`:           http.StatusForbidden,
		`"events":"tcp://127.0.0.1:5557","keys":"http://169.254.169.254"`:  http.StatusForbidden,
		`"events":"tcp://127.0.0.1:5557","keys":"http://127.0.0.1:1/a?b="`: http.StatusBadRequest, // asked for would be what it likes
	} {
		body := []byte(`{"worker_id":7,"model":"m","block_size":16,"transport":"none","pools":[{"name":"p","source":{"parts":1,` + source + `}}]}`)
		var q registration
		no := q.parse(body)
		if no == nil {
			_, no = q.workers(body, Allow{})
		}
		if got := no; status == 0 && got != nil || status > 0 && (got == nil || got.status != status) {
			t.Errorf("%s: %+v, want %d", source, got, status)
		}
	}
}

// Bodies that are refused, and what they leave behind: nothing.
func TestHostileRegistrations(t *testing.T) {
	r := openRegistry(t, startBroker(t, t.TempDir()), "one", nil)
	const good = `{"instance_id":7,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16}`
	with := func(more string) string { return strings.Replace(good, `}`, `,`+more+`}`, 1) }
	for body, status := range map[string]int{
		with(`"endpoint":"http://127.0.0.1:5557"`):                        400, // nothing reads events there
		with(`"replay_endpoint":"https://127.0.0.1:5557"`):                400,
		with(`"endpoint":"tcp://127.0.0.1:0"`):                            403,
		with(`"instance_id":1e3`):                                         400,
		with(`"instance_id":18446744073709551616`):                        400,
		with(`"instance_id":null`):                                        400,
		with(`"dp_rank":4294967296`):                                      400,
		with(`"model_name":` + jsonText(strings.Repeat("m", 2000))):       400,
		with(`"routing_group":` + jsonText(strings.Repeat("g", 2000))):    400,
		with(`"engine_scheme":` + jsonText(strings.Repeat("e", 70000))):   400,
		strings.Repeat(`{"a":`, 20000) + `1` + strings.Repeat(`}`, 20000): 400,
		strings.Repeat(`[`, 1<<20):                                        400,
		good + good:                                                       400,
		"\xff" + good:                                                     400,
	} {
		got, answer := r.ServeRegister(deadline(t), []byte(body))
		if got != status || !json.Valid(answer) || len(answer) > 4096 {
			t.Errorf("%.100s: %d %.200s", body, got, answer)
		}
		if got, answer := r.ServeUnregister(deadline(t), []byte(body)); got < 400 || !json.Valid(answer) || len(answer) > 4096 {
			t.Errorf("unregister %.100s: %d %.200s", body, got, answer)
		}
	}
	if n := len(r.Snapshot(true)); n != 0 {
		t.Errorf("%d workers", n)
	}
}

func jsonText(s string) string { return `"` + s + `"` }

// The ranks of an instance are bounded, cheap to add, and leave in one request;
// all have the same content hashes.
func TestAnInstanceOfManyRanks(t *testing.T) {
	r := openRegistry(t, startBroker(t, t.TempDir()), "one", nil)
	body := func(rank int, more string) string {
		return fmt.Sprintf(`{"instance_id":7,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16,"dp_rank":%d%s}`, rank, more)
	}
	const few = 200
	for rank := range few {
		if got, answer := r.ServeRegister(deadline(t), []byte(body(rank, ""))); got != http.StatusCreated {
			t.Fatalf("rank %d: %d %s", rank, got, answer)
		}
	}
	post(t, r.ServeUnregister, body(5, ""), http.StatusOK, "ok")
	for _, other := range []string{`"lora_name":"l"`, `"additional_salt":"s"`, `"engine_scheme":"e"`} {
		post(t, r.ServeRegister, body(5, ","+other), http.StatusConflict, "other ranks")
	}
	post(t, r.ServeRegister, body(5, ""), http.StatusCreated, "ok")
	post(t, r.ServeUnregister, `{"instance_id":7,"model_name":"m"}`, http.StatusOK, "ok")
	waittest.Until(t, func() error { // the answer waits for a second at most until it is so
		if e, _ := r.Lookup(Key{Worker{Model: "m", BlockSize: 16}.Space(), 7}); e.State != Gone {
			return fmt.Errorf("%v", e.State)
		}
		return nil
	})
	w := Worker{ID: 8, Model: "m", BlockSize: 16, Transport: ZMQ}
	for rank := range uint32(maxRanks + 1) { // as if others had written them
		w.Ranks, w.Endpoints.Events = []uint32{rank}, map[uint32]string{rank: "tcp://127.0.0.1:5557"}
		value, err := json.Marshal(record{Version: recordVersion, Worker: w})
		if err != nil {
			t.Fatal(err)
		}
		r.mu.Lock()
		r.mu.ledger.apply(time.Now(), change{key: httpKey(w.Key(), rank), value: value, created: time.Now()})
		r.mu.Unlock()
	}
	if e, _ := r.Lookup(w.Key()); len(e.Ranks) != maxRanks || len(e.Endpoints.Events) != maxRanks || len(r.Corrupt()) != 1 {
		t.Errorf("%d ranks, %d endpoints, %+v", len(e.Ranks), len(e.Endpoints.Events), r.Corrupt())
	}
	post(t, r.ServeRegister, strings.Replace(body(maxRanks+1, ""), ":7", ":8", 1), http.StatusBadRequest, "1024 ranks")
}

// All garbage is collected, however much there is at once.
func TestMuchGarbage(t *testing.T) {
	w, a := newWorld(t), testWorker(1)
	w.l.cfg.maxWorkers = 1000
	for id := range uint64(250) {
		w.announce(testWorker(10+id), 1)
		if id%2 == 0 {
			w.unregister(testWorker(10 + id))
		}
	}
	w.live(3*time.Hour, a) // longer than the others are remembered
	for range 3 {
		for _, g := range w.l.garbage(100) {
			delete(w.last, g.key)
		}
	}
	if len(w.last) != 2 || len(w.l.members) != 1 || len(w.l.markers) != 0 || len(w.l.byKey) != 1 {
		t.Errorf("%d keys are left, %d workers, %d markers, %d known keys", len(w.last), len(w.l.members), len(w.l.markers), len(w.l.byKey))
	}
}
