package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// ports returns the first of n in a row that nobody listens at.
func ports(t *testing.T, n int) int {
	t.Helper()
search:
	for range 1000 {
		first := 10_000 + rand.IntN(20_000)
		for i := range n {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if err != nil {
				continue search
			}
			_ = l.Close() // it has given its port
		}
		return first
	}
	t.Fatalf("no %d ports in a row are free", n)
	return 0
}

// patients is a fleet in which nearly every worker has a mistake.
type patients struct {
	t          *testing.T
	home, data string
	files      string // of the tokenizer
	next       int    // port that is free
	dead       int    // port at which nobody listens
	publishers int    // that were started
}

// engines starts workers in one process and returns where the first is: HTTP, events
// and replays, of which the others' follow.
func (p *patients) engines(n int, flags ...string) (at [3]int) {
	p.t.Helper()
	for i := range at {
		at[i] = p.next
		p.next += 2 * n // a worker may have two ranks
	}
	start(p.t, p.home, "kvmocker", append([]string{"--http", "--data-dir", p.data, "--speed=0", "--workers", strconv.Itoa(n), "--model=m", "--model-files", p.files,
		"--http-port", strconv.Itoa(at[0]), "--engine-events", strconv.Itoa(at[1]), "--engine-replays", strconv.Itoa(at[2])}, flags...)...)
	return at
}

// publisher starts that of a worker whose engine is there; flags that come again count.
func (p *patients) publisher(worker string, at [3]int, flags ...string) {
	p.t.Helper()
	p.publishers++
	start(p.t, p.home, "kvpublisher", append([]string{"--data-dir", p.data, "--admin-listen=", "--state-dir=none", "--model=m", "--worker", worker, "--tokenizer", p.files,
		fmt.Sprintf("--engine-http=http://127.0.0.1:%d", at[0]), fmt.Sprintf("--engine=tcp://127.0.0.1:%d", at[1]), fmt.Sprintf("--engine-replay=tcp://127.0.0.1:%d", at[2])}, flags...)...)
}

// doctor runs kvctl doctor.
func (p *patients) doctor() (code int, all []doctor.Finding, out []byte) {
	p.t.Helper()
	dir, err := binaries.Dir()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.CommandContext(p.t.Context(), filepath.Join(dir, "kvctl"), "--data-dir", p.data, "--json", "--listen=2500ms", "--engine-wait=8s", "--at-once=64", "doctor")
	cmd.Env = []string{"HOME=" + p.home}
	var exit *exec.ExitError
	if out, err = cmd.Output(); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	var said struct {
		Findings []doctor.Finding
		Error    string
	}
	if err := json.Unmarshal(out, &said); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
	return cmd.ProcessState.ExitCode(), said.Findings, out
}

// TestDoctorFindsMistakes: each mistake is made in real processes, and kvctl doctor names it
// in one line of its worker; workers without one have none.
func TestDoctorFindsMistakes(t *testing.T) {
	home := t.TempDir()
	p := &patients{t: t, home: home, data: filepath.Join(home, "data"), files: t.TempDir(), next: ports(t, 360)}
	p.dead, p.next = p.next, p.next+1
	for name, f := range tokentest.Files(tokentest.Template) {
		if err := os.WriteFile(filepath.Join(p.files, name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	template := filepath.Join(home, "template")
	if err := os.WriteFile(template, []byte(tokentest.Template+"!"), 0o600); err != nil {
		t.Fatal(err)
	}
	in := startIndexer(t, home)
	dead := fmt.Sprintf("tcp://127.0.0.1:%d", p.dead)

	type mistake struct {
		worker, check string
		level         doctor.Level
		found         string
	}
	mistakes := []mistake{}
	expect := func(worker, check string, level doctor.Level, found string) {
		mistakes = append(mistakes, mistake{worker, check, level, found})
	}

	// What kvpublisher was told wrongly, of engines in one process.
	sound := p.engines(17)
	at := func(i int) [3]int { return [3]int{sound[0] + i, sound[1] + i, sound[2] + i} }
	p.publisher("sound", at(0), "--tiers=device")
	expect("wrong-block-size", "block_size", doctor.Fault, "16 tokens, registered are 32")
	p.publisher("wrong-block-size", at(1), "--block-size=32")
	expect("wrong-port", "events", doctor.Fault, "refused")
	p.publisher("wrong-port", at(2), "--engine="+dead)
	expect("port-of-http", "events", doctor.Fault, "the events of rank 0 are not read")
	p.publisher("port-of-http", at(3), fmt.Sprintf("--engine=tcp://127.0.0.1:%d", at(3)[0]))
	expect("wrong-replay", "replay", doctor.Fault, "does not answer")
	p.publisher("wrong-replay", at(4), "--engine-replay="+dead)
	expect("no-replay", "replay", doctor.Warning, "none is set")
	p.publisher("no-replay", at(5), "--engine-replay=")
	expect("never-offloads", "tiers", doctor.Warning, "nothing is seen of host_pinned")
	p.publisher("never-offloads", at(6), "--tiers=device,host_pinned")
	expect("too-many-ranks", "dp_ranks", doctor.Fault, "the engine has 1, registered are 2")
	p.publisher("too-many-ranks", at(7), "--dp-ranks=0-1")
	expect("no-such-adapter", "lora", doctor.Warning, "sql")
	p.publisher("no-such-adapter", at(8), "--lora-ids=1=sql")
	expect("wrong-http", "engine", doctor.Fault, "refused")
	p.publisher("wrong-http", at(9), fmt.Sprintf("--engine-http=http://127.0.0.1:%d", p.dead))
	expect("no-http", "engine", doctor.Warning, "no address")
	p.publisher("no-http", at(10), "--engine-http=")
	expect("wrong-model", "model", doctor.Fault, `the engine serves m, registered is "other"`)
	p.publisher("wrong-model", at(11), "--model=other")
	expect("mistaken-eagle", "left_out", doctor.Warning, "lookahead")
	p.publisher("mistaken-eagle", at(12), "--eagle")
	expect("crossed-1", "events", doctor.Fault, "of crossed-2") // which of them is told that its events are, is by who is asked first
	expect("crossed-2", "events", doctor.Fault, "of crossed-1")
	p.publisher("crossed-1", [3]int{at(14)[0], at(15)[1], at(15)[2]})
	p.publisher("crossed-2", [3]int{at(15)[0], at(14)[1], at(14)[2]})
	expect("asks-another", "events", doctor.Fault, "") // who has its engine is named if that was listened to just then
	p.publisher("asks-another", [3]int{at(6)[0], at(16)[1], at(16)[2]})
	expect("not-ours", "hash_scheme", doctor.Fault, "it will never match")
	body := fmt.Sprintf(`{"worker_id":"not-ours","model":"m","block_size":16,"transport":"zmq","hash_scheme":"xxh3-64;seed=42","endpoints":{"http":"http://127.0.0.1:%d",`+
		`"events":{"0":"tcp://127.0.0.1:%d"},"replay":{"0":"tcp://127.0.0.1:%d"}}}`, at(13)[0], at(13)[1], at(13)[2])
	if status, text, _ := ask(in.url+"/register", body); status != http.StatusCreated {
		t.Fatalf("%d %s", status, text)
	}

	// What engines were started with.
	for _, m := range []struct {
		mistake
		flags []string
	}{
		{mistake{"salted", "matches", doctor.Fault, "salts the prompt"}, []string{"--engine-wrong=salt"}},
		{mistake{"events-off", "events", doctor.Fault, "nothing arrived"}, []string{"--engine-wrong=silent"}},
		{mistake{"events-late", "lateness", doctor.Warning, "after its answer"}, []string{"--engine-wrong=late"}},
		{mistake{"wrong-clock", "clock", doctor.Warning, "1h0m"}, []string{"--engine-wrong=clock"}},
		{mistake{"unreported", "cached", doctor.Warning, "does not say what was cached"}, []string{"--engine-wrong=unreported"}},
		{mistake{"other-template", "tokens", doctor.Fault, "of chats the engine makes other tokens"}, []string{"--engine-chat-template", template}},
		{mistake{"other-tokenizer", "tokens", doctor.Fault, "of texts the engine makes other tokens"}, []string{"--model-files="}},
		{mistake{"too-few-ranks", "dp_ranks", doctor.Fault, "the engine has 2, registered are 1"}, []string{"--dp-size=2"}},
	} {
		p.publisher(m.worker, p.engines(1, m.flags...))
		mistakes = append(mistakes, m.mistake)
	}
	expect("other-seed-1", "engine_hashes", doctor.Fault, `otherwise than others of the engine scheme "sha256_cbor/0"`)
	expect("other-seed-2", "engine_hashes", doctor.Fault, `otherwise than others of the engine scheme "sha256_cbor/0"`)
	seeds := p.engines(2, "--engine-hashes=own")
	p.publisher("other-seed-1", seeds, "--engine-scheme=sha256_cbor/0")
	p.publisher("other-seed-2", [3]int{seeds[0] + 1, seeds[1] + 1, seeds[2] + 1}, "--engine-scheme=sha256_cbor/0")

	// Prefill and decode workers, of a model each.
	pair := func(model, role, engineWay, way string, flags ...string) {
		at := p.engines(1, "--role="+role, "--kv-transfer="+engineWay, "--model="+model)
		p.publisher(model+"-"+role, at, append([]string{"--role=" + role, "--kv-transfer=" + way, "--model=" + model, fmt.Sprintf("--bootstrap=127.0.0.1:%d", at[0])}, flags...)...)
	}
	pair("pair", "prefill", "vllm", "vllm")
	pair("pair", "decode", "vllm", "vllm")
	pair("pull", "prefill", "mooncake", "mooncake")
	pair("pull", "decode", "mooncake", "mooncake")
	expect("no-connector-decode", "hand_over", doctor.Fault, "with no-connector-prefill: of 64 tokens 0 were there")
	pair("no-connector", "prefill", "vllm", "vllm")
	pair("no-connector", "decode", "", "vllm")
	expect("two-connectors-decode", "connector", doctor.Fault, "as sglang, prefill workers of its model as vllm")
	pair("two-connectors", "prefill", "vllm", "vllm")
	pair("two-connectors", "decode", "sglang", "sglang")
	expect("alone-prefill", "connector", doctor.Fault, "no decode worker of its model is there")
	pair("alone", "prefill", "vllm", "vllm")
	expect("out-of-reach-decode", "hand_over", doctor.Fault, "bootstrap address")
	pair("out-of-reach", "prefill", "sglang", "sglang", fmt.Sprintf("--bootstrap=127.0.0.1:%d", p.dead))
	pair("out-of-reach", "decode", "sglang", "sglang")

	// Pairs of vLLM's MooncakeConnector, and others that are registered without a publisher: each is a routing group.
	posted := 0
	post := func(name, role, way string, at, bootstrap int, more string) {
		t.Helper()
		posted++
		body := fmt.Sprintf(`{"worker_id":%q,"model":"mc","group":%q,"block_size":16,"transport":"none","unpaired":true,"role":%q,"kv_transfer":%q,`+
			`"endpoints":{"http":"http://127.0.0.1:%d","bootstrap":"127.0.0.1:%d"}%s}`, name+"-"+role, name, role, way, at, bootstrap, more) // of two members of a name the last one counts
		if status, text, _ := ask(in.url+"/register", body); status != http.StatusCreated {
			t.Fatalf("%s: %d %s", body, status, text)
		}
	}
	computing, decoding := p.engines(8, "--model=mc", "--role=prefill", "--kv-transfer=mooncake")[0], p.engines(8, "--model=mc", "--role=decode", "--kv-transfer=mooncake")[0]
	deaf, failing := p.engines(1, "--model=mc", "--role=decode")[0], p.engines(1, "--model=mc", "--role=decode", "--kv-transfer=mooncake", "--engine-wrong=lost")[0]
	relayed := p.engines(1, "--model=mc", "--role=decode", "--kv-transfer=vllm", "--engine-wrong=lost")[0]
	others := p.engines(1, "--model=mc", "--role=prefill", "--kv-transfer=sglang", "--engine-kind=sglang")[0]
	of := func(name string, i int, bootstrap, at int, way string) {
		t.Helper()
		post(name, "prefill", "mooncake", computing+i, bootstrap, "")
		post(name, "decode", way, at, bootstrap, "")
	}
	expect("nobody-meets-decode", "hand_over", doctor.Fault, fmt.Sprintf("bootstrap server at http://127.0.0.1:%d: dial", p.dead))
	of("nobody-meets", 1, p.dead, decoding+1, "mooncake")
	expect("takes-none-decode", "hand_over", doctor.Fault, "with takes-none-prefill: of 64 tokens 0 were there")
	of("takes-none", 2, computing+2, deaf, "mooncake")
	expect("cannot-fetch-decode", "hand_over", doctor.Fault, "the decode worker: /v1/completions: status 500")
	of("cannot-fetch", 3, computing+3, failing, "mooncake")
	expect("takes-otherwise-decode", "connector", doctor.Fault, "as vllm, prefill workers of its model as mooncake: it is paired with none")
	of("takes-otherwise", 4, computing+4, decoding+4, "vllm")
	expect("swapped-prefill", "hand_over", doctor.Fault, "/query: status 404")
	post("swapped", "prefill", "mooncake", decoding+5, decoding+5, "")
	post("swapped", "decode", "mooncake", computing+5, computing+5, "")
	expect("no-such-rank-prefill", "hand_over", doctor.Fault, "it does not list rank 3 (it lists 1)")
	post("no-such-rank", "prefill", "mooncake", computing+6, computing+6, `,"dp_ranks":[0,3]`)
	post("no-such-rank", "decode", "mooncake", decoding+6, decoding+6, "")
	expect("another's-prefill", "connector", doctor.Warning, "is that of another engine, too")
	post("another's", "prefill", "mooncake", computing+7, computing, "")
	post("another's", "decode", "mooncake", decoding+7, decoding, "")
	post("another's", "prefill", "mooncake", computing, computing, `,"worker_id":"whose"`)
	expect("wrong-way-prefill", "connector", doctor.Fault, "its engine is sglang, which does not hand prompts over as mooncake")
	post("wrong-way", "prefill", "mooncake", others, others, "")
	post("wrong-way", "decode", "mooncake", decoding, decoding, "")
	expect("relay-fails-decode", "hand_over", doctor.Fault, "the decode worker: /v1/completions: status 500")
	post("relay-fails", "decode", "vllm", relayed, relayed, "")
	post("relay-fails", "prefill", "vllm", p.engines(1, "--model=mc", "--role=prefill", "--kv-transfer=vllm")[0], relayed, "")
	expect("other-blocks-decode", "connector", doctor.Fault, "its blocks are of 16 tokens, those of prefill workers of its model of 32")
	post("other-blocks", "decode", "mooncake", decoding, decoding, "")
	post("other-blocks", "prefill", "mooncake", computing, computing, `,"block_size":32`)

	// A round of the doctor takes seconds: it is not begun while some are yet to register.
	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), in.url+"/v1/workers")
		if n := strings.Count(string(text), `"worker_id"`); n < p.publishers+1+posted {
			return fmt.Errorf("%d of %d workers are registered: %w", n, p.publishers+1+posted, err)
		}
		return nil
	})
	rounds := 0
	eventually(t, time.Minute, func() error {
		rounds++
		code, all, out := p.doctor()
		var missing []error
		for _, m := range mistakes {
			i := slices.IndexFunc(all, func(f doctor.Finding) bool { return f.Name == m.worker && f.Check == m.check })
			if i < 0 || all[i].Level != m.level || !strings.Contains(all[i].Found, m.found) || all[i].Do == "" {
				missing = append(missing, fmt.Errorf("%v is not found", m))
			}
		}
		for _, f := range all {
			if slices.Contains([]string{"sound", "pair-prefill", "pair-decode", "pull-prefill", "pull-decode"}, f.Name) && (f.Level == doctor.Fault || f.Level == doctor.Warning) {
				missing = append(missing, fmt.Errorf("of a sound worker: %+v", f))
			}
		}
		if code != 4 {
			missing = append(missing, fmt.Errorf("exit code %d", code))
		}
		if missing != nil {
			return fmt.Errorf("%w\n%s", errors.Join(missing...), bytes.ReplaceAll(out, []byte("},{"), []byte("},\n{")))
		}
		return nil
	})
	t.Logf("%d rounds of the doctor", rounds)
}
