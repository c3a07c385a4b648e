package registry

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A prefill or decode worker that goes with none of those that are there is refused, and told why; one that goes
// with some is not, nor is the first, nor one that says that others are to come.
func TestWorkersThatCannotTalkAreRefused(t *testing.T) {
	r := openRegistry(t, startBroker(t, t.TempDir()), "one", nil)
	for id, c := range []struct {
		role, way string
		size      int
		more      string
		says      string // of a refusal
	}{
		{"decode", "vllm", 16, "", ""}, // nobody is there to go with
		{"prefill", "sglang", 16, "", "kv_transfer is vllm there, and sglang here"},
		{"prefill", "vllm", 32, "", "block_size is 16 there, and 32 here"},
		{"prefill", "vllm", 32, `,"group":"g"`, ""}, // those are nothing to it
		{"prefill", "vllm", 16, "", ""},
		{"decode", "mooncake", 16, "", "kv_transfer is vllm there, and mooncake here"},
		{"decode", "mooncake", 16, `,"unpaired":false`, "unpaired"},
		{"decode", "mooncake", 16, `,"unpaired":true`, ""},
		{"prefill", "mooncake", 16, "", ""},
		{"decode", "", 16, "", ""}, // it does not say
		{"prefill", "sglang", 16, "", ""},
		{"aggregated", "sglang", 64, "", ""}, // it needs nobody
		{"decode", "vllm", 64, "", "block_size is "},
		{"decode", "vllm", 16, `,"unpaired":1`, "not a registration"},
	} {
		body := fmt.Sprintf(`{"worker_id":%d,"model":"m","block_size":%d,"transport":"none","role":%q,"kv_transfer":%q%s}`, id, c.size, c.role, c.way, c.more)
		status := map[bool]int{true: http.StatusCreated, false: http.StatusConflict}[c.says == ""]
		if c.says == "not a registration" {
			status = http.StatusBadRequest
		}
		got, answer := r.ServeRegister(deadline(t), []byte(body))
		if got != status || !strings.Contains(string(answer), c.says) {
			t.Errorf("%s: %d %s", body, got, answer)
		}
		there := false
		for _, e := range r.Snapshot(true) {
			there = there || e.ID == uint64(id)
		}
		if there != (status == http.StatusCreated) {
			t.Errorf("%s: it is registered: %v", body, there)
		}
	}
}

// One that is there already may be registered again as it is, whoever has come meanwhile; not as another one.
func TestWhoIsThereIsRegisteredAgain(t *testing.T) {
	r := openRegistry(t, startBroker(t, t.TempDir()), "one", nil)
	for i, c := range []struct {
		id        int
		role, way string
		more      string
		status    int
	}{
		{1, "decode", "vllm", "", http.StatusCreated},
		{2, "prefill", "sglang", `,"unpaired":true`, http.StatusCreated},
		{1, "decode", "vllm", "", http.StatusCreated},
		{1, "decode", "vllm", `,"dp_ranks":[1]`, http.StatusCreated}, // another rank of it
		{1, "decode", "mooncake", "", http.StatusConflict},
		{3, "decode", "vllm", "", http.StatusConflict},
	} {
		body := fmt.Sprintf(`{"worker_id":%d,"model":"m","block_size":16,"transport":"none","role":%q,"kv_transfer":%q%s}`, c.id, c.role, c.way, c.more)
		if got, answer := r.ServeRegister(deadline(t), []byte(body)); got != c.status {
			t.Errorf("%d: %d %s", i, got, answer)
		}
	}
}
