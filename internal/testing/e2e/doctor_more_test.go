package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// TestDoctorFindsMistakesOfSharing: of what workers share, and of what is between them and others, each mistake is named;
// sound pairs of each way, pools, peers, hybrids and ranks have no finding.
func TestDoctorFindsMistakesOfSharing(t *testing.T) {
	home := t.TempDir()
	p := &patients{t: t, home: home, data: filepath.Join(home, "data"), files: t.TempDir(), next: ports(t, 160)}
	p.dead, p.next = p.next, p.next+1
	for name, f := range tokentest.Files(tokentest.Template) {
		if err := os.WriteFile(filepath.Join(p.files, name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	in := startIndexer(t, home)
	_, router := startRouter(t, home)

	type mistake struct {
		worker, check string
		level         doctor.Level
		found         string
	}
	var mistakes []mistake
	var sound []string
	expect := func(worker, check string, level doctor.Level, found string) {
		mistakes = append(mistakes, mistake{worker, check, level, found})
	}
	engines := p.engines(14, "--peers")
	at := func(i int) [3]int { return [3]int{engines[0] + i, engines[1] + i, engines[2] + i} }
	address := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", at(i)[0]) }
	dead := fmt.Sprintf("127.0.0.1:%d", p.dead)
	source := func(name, events, keys string) string {
		return fmt.Sprintf(`--pools=[{"name":%q,"source":{"events":"tcp://%s","keys":"http://%s","parts":1}}]`, name, events, keys)
	}

	sound = append(sound, "sharing", "sharing-too")
	p.publisher("sharing", at(0), source("store", fmt.Sprintf("127.0.0.1:%d", at(0)[1]), address(0)), "--peer="+address(0))
	p.publisher("sharing-too", at(1), `--pools=[{"name":"store"}]`, "--peer="+address(1))
	expect("pool-misspelt", "pools", doctor.Warning, `no other worker of its model names pool "stroe"`)
	p.publisher("pool-misspelt", at(2), `--pools=[{"name":"stroe"}]`)
	expect("pool-otherwise", "pools", doctor.Warning, `of pool "store" it says chunk 256`)
	p.publisher("pool-otherwise", at(3), `--pools=[{"name":"store","chunk":256}]`)
	expect("pool-events", "pools", doctor.Fault, `(events) of pool "events": dial`)
	p.publisher("pool-events", at(4), source("events", dead, address(0)))
	expect("pool-keys", "pools", doctor.Fault, `(keys) of pool "keys": dial`)
	p.publisher("pool-keys", at(5), source("keys", address(0), dead))
	expect("peer-dead", "peer", doctor.Fault, "nobody answers at "+dead)
	p.publisher("peer-dead", at(6), "--peer="+dead)
	expect("peer", "peer", doctor.Warning, "is that of another engine, too")
	expect("another's-peer", "peer", doctor.Warning, "is that of another engine, too")
	p.publisher("peer", at(7), "--peer="+address(7))
	p.publisher("another's-peer", at(8), "--peer="+address(7))
	expect("other-topic", "events", doctor.Fault, "nothing arrived")
	p.publisher("other-topic", at(9), "--engine-topic=other")
	expect("at-router", "events", doctor.Fault, "") // who got the prompt is named if that was listened to just then
	p.publisher("at-router", at(10), "--engine-http="+router)
	expect("one-engine-1", "dp_ranks", doctor.Fault, "the engine has 1, registered are 2")
	expect("one-engine-2", "dp_ranks", doctor.Fault, "the engine has 1, registered are 2")
	p.publisher("one-engine-1", at(11))
	p.publisher("one-engine-2", at(11))
	expect("no-tls", "engine", doctor.Fault, "HTTP response to HTTPS")
	p.publisher("no-tls", at(12), "--engine-http=https://"+address(12))
	expect("path", "engine", doctor.Fault, "status 404")
	p.publisher("path", at(13), "--engine-http=http://"+address(13)+"/v1")
	expect("claims", "cached", doctor.Fault, "of a prompt that nobody had sent before")
	p.publisher("claims", p.engines(1, "--engine-wrong=claims"))

	two := p.engines(1, "--dp-size=2", "--model=two")
	expect("rank-0", "events", doctor.Fault, "of the engine of rank-1")
	expect("rank-1", "events", doctor.Fault, "of the engine of rank-0")
	p.publisher("rank-0", [3]int{two[0], two[1] + 1, two[2] + 1}, "--dp-ranks=0", "--model=two")
	p.publisher("rank-1", [3]int{two[0], two[1] - 1, two[2] - 1}, "--dp-ranks=1", "--model=two")

	mooncake := func(role string) [3]int {
		return p.engines(1, "--role="+role, "--kv-transfer=mooncake", "--model=unsaid")
	}
	expect("unsaid-prefill", "connector", doctor.Warning, "decode workers of its model take them as mooncake")
	p.publisher("unsaid-prefill", mooncake("prefill"), "--role=prefill", "--model=unsaid")
	p.publisher("unsaid-decode", mooncake("decode"), "--role=decode", "--kv-transfer=mooncake", "--model=unsaid")

	// Sound fleets of other kinds.
	for _, way := range []string{"vllm", "sglang", "mooncake"} {
		for i, role := range []string{"prefill", "decode", "decode"} {
			name, e := fmt.Sprintf("%s-%d", way, i), p.engines(1, "--role="+role, "--kv-transfer="+way, "--model="+way)
			sound = append(sound, name)
			p.publisher(name, e, "--role="+role, "--kv-transfer="+way, "--model="+way, fmt.Sprintf("--bootstrap=127.0.0.1:%d", e[0]))
		}
	}
	hybrid := p.engines(2, "--model=hybrid", "--cache-kinds=sliding_window:64")
	ranked := p.engines(1, "--model=ranked", "--dp-size=2")
	sound = append(sound, "hybrid-1", "hybrid-2", "ranked")
	p.publisher("hybrid-1", hybrid, "--model=hybrid")
	p.publisher("hybrid-2", [3]int{hybrid[0] + 1, hybrid[1] + 1, hybrid[2] + 1}, "--model=hybrid")
	p.publisher("ranked", ranked, "--model=ranked", "--dp-ranks=0-1")

	eventually(t, time.Minute, func() error {
		text, err := get(t.Context(), in.url+"/v1/workers")
		if n := strings.Count(string(text), `"worker_id"`); n < p.publishers {
			return fmt.Errorf("%d of %d workers are registered: %w", n, p.publishers, err)
		}
		return nil
	})
	eventually(t, time.Minute, func() error {
		_, all, out := p.doctor()
		var wrong []error
		for _, m := range mistakes {
			i := slices.IndexFunc(all, func(f doctor.Finding) bool { return f.Name == m.worker && f.Check == m.check })
			if i < 0 || all[i].Level != m.level || !strings.Contains(all[i].Found, m.found) || all[i].Do == "" {
				wrong = append(wrong, fmt.Errorf("%v is not found", m))
			}
		}
		for _, f := range all {
			if slices.Contains(sound, f.Name) && (f.Level == doctor.Fault || f.Level == doctor.Warning) {
				wrong = append(wrong, fmt.Errorf("of a sound worker: %+v", f))
			}
		}
		if wrong != nil {
			return fmt.Errorf("%w\n%s", errors.Join(wrong...), bytes.ReplaceAll(out, []byte("},{"), []byte("},\n{")))
		}
		return nil
	})
}
