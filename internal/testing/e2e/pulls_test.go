package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A prompt whose prefix is with a busy worker goes to another one, which fetches it: the engine says
// that it found it cached, and the router counts it. What a worker is said to give and does not is
// counted as missed, and after some of that nobody is told to fetch it.
func TestPrefixesComeFromOtherWorkers(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	_, url := startRouter(t, home, "--queue=0", "--trust=127.0.0.1")
	data, free := "--data-dir="+home+"/data", ports(t, 8)
	// Of model m worker 1 is slow, 2 is not. Of model n worker 3's address for others is wrong.
	start(t, home, "kvmocker", data, "--workers=1", "--http", "--http-port=0", "--speed=0.1", "--max-batched=1024", "--model=m", "--peers", "--peer-link=0")
	start(t, home, "kvmocker", data, "--workers=1", "--http", "--http-port=0", "--speed=0", "--model=m", "--peers", "--first-worker=2")
	start(t, home, "kvmocker", data, "--workers=1", "--http", "--http-port", strconv.Itoa(free), "--engine-events", strconv.Itoa(free+2), "--engine-replays", strconv.Itoa(free+4),
		"--speed=0", "--model=n", "--first-worker=3")
	start(t, home, "kvpublisher", data, "--admin-listen=", "--state-dir=none", "--model=n", "--worker=3", "--block-size=16", fmt.Sprintf("--engine-http=http://127.0.0.1:%d", free),
		fmt.Sprintf("--engine=tcp://127.0.0.1:%d", free+2), fmt.Sprintf("--engine-replay=tcp://127.0.0.1:%d", free+4), fmt.Sprintf("--peer=127.0.0.1:%d", free+6))
	start(t, home, "kvmocker", data, "--workers=1", "--http", "--http-port=0", "--speed=0", "--model=n", "--peers", "--first-worker=4")

	rnd := rand.New(rand.NewPCG(20, 5))
	prompt := func(model string, tokens int) string {
		list := make([]uint32, tokens)
		for i := range list {
			list[i] = rnd.Uint32N(100_000)
		}
		body, err := json.Marshal(map[string]any{"model": model, "prompt": list, "max_tokens": 1})
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	// say sends a prompt, to a worker if one is named, and returns who served it and what it found.
	say := func(body, worker string) (who string, cached int, receipt string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if worker != "" {
			req.Header.Set("X-Kvatlas-Worker", worker)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		var answer struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %v", resp.Status, err)
		}
		return resp.Header.Get("X-Kvatlas-Worker"), answer.Usage.Details.Cached, resp.Header.Get("X-Kvatlas-Receipt")
	}
	count := func(name string, label ...string) float64 {
		t.Helper()
		text, err := get(t.Context(), url+"/metrics")
		if err != nil {
			t.Fatal(err)
		}
		return sum(text, name, label...)
	}
	for w, model := range map[string]string{"1": "m", "2": "m", "3": "n", "4": "n"} {
		eventually(t, time.Minute, func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(`{"model":"`+model+`","prompt":[1],"max_tokens":1}`))
			if err != nil {
				return err
			}
			req.Header.Set("X-Kvatlas-Worker", w)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
				return fmt.Errorf("worker %s: %s", w, resp.Status)
			}
			return nil
		})
	}
	known := 0.0
	// has lets a worker compute a prompt, and returns it when the router knows that.
	has := func(worker, model string, tokens int) string {
		t.Helper()
		body := prompt(model, tokens)
		if who, cached, _ := say(body, worker); who != worker || cached != 0 {
			t.Fatalf("worker %s found %d tokens of what nobody has said", who, cached)
		}
		known += float64(tokens / 16)
		eventually(t, time.Minute, func() error {
			if n := count("kvatlas_ingest_blocks_total", `result="stored"`); n < known {
				return fmt.Errorf("%v blocks are known of %v", n, known)
			}
			return nil
		})
		return body
	}

	body := has("1", "m", 2005)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	for range 8 { // 10 s of work each
		long := prompt("m", 30_000)
		busy.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(long))
			if err != nil {
				return
			}
			req.Header.Set("X-Kvatlas-Worker", "1")
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	eventually(t, time.Minute, func() error {
		if n := count("kvatlas_router_live_bookings"); n < 8 {
			return fmt.Errorf("%v requests are booked", n)
		}
		return nil
	})
	who, cached, receipt := say(body, "")
	if came := count("kvatlas_router_pulls_total"); who != "2" || cached != 2000 || came != 1 || !strings.Contains(receipt, `, pull=2000, pull-from="1"`) {
		t.Errorf("with worker 1 busy: worker %s found %d tokens, %v prefixes came; %s", who, cached, came, receipt)
	}

	told := 0
	for ; ; told++ {
		_, cached, receipt := say(has("3", "n", 8005), "4")
		known += 8005 / 16 // of worker 4
		if cached != 0 {
			t.Fatalf("worker 4 found %d tokens: %s", cached, receipt)
		}
		if !strings.Contains(receipt, `pull-from="3"`) {
			break
		}
		if told == 30 {
			t.Fatal("what never came is still expected")
		}
	}
	if missed := count("kvatlas_router_pulls_missed_total"); told == 0 || missed != float64(told) {
		t.Errorf("told %d times to fetch from worker 3, missed %v", told, missed)
	}
	if n := count("kvatlas_router_not_found_requests_total", `model="n",block_size="16",group="",found="less",reason="not_pulled"`); n != float64(told) {
		t.Errorf("told %d times, the account has %v", told, n)
	}
}
