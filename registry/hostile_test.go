package registry

import "testing"

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
