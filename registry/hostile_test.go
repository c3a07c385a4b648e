package registry

import (
	"testing"
	"time"
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
