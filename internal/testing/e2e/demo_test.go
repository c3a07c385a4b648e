package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The demonstration says what it does, its requests can be pasted and find
// something, and ctrl-c ends all of it well.
func TestDemo(t *testing.T) {
	for _, tool := range []string{"sh", "curl", "seq"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s to paste the requests into", tool)
		}
	}
	home := t.TempDir()
	p := start(t, home, "kvmocker", "--with-indexer", "--http-listen", "127.0.0.1:0", "--lose-every", "1s", "--die-every", "3s", "--die-for", "2s")
	var requests []string
	address := ""
	moving, lines := 0, 0
	eventually(t, time.Minute, func() error { // Scan returns at least once a second
		for p.lines.Scan() {
			line := strings.TrimSpace(p.lines.Text())
			if at, ok := strings.CutPrefix(line, "Look at it: "); ok {
				address = at
			}
			if strings.HasPrefix(line, "curl ") {
				requests = append(requests, line)
			}
			if strings.Contains(line, "index: ") {
				if lines++; !strings.Contains(line, " 0 events/s") {
					moving++
				}
			}
			if len(requests) == 4 && lines >= 3 {
				return nil
			}
		}
		t.Fatalf("kvmocker says no more; requests so far: %q", requests)
		return nil
	})
	if moving == 0 {
		t.Errorf("nothing moves in %d lines", lines)
	}
	found := 0
	for _, request := range requests {
		out, err := exec.Command("sh", "-c", request).Output()
		if err != nil || len(out) == 0 {
			t.Errorf("%s: %v, %d bytes", request, err, len(out))
		}
		var answer struct {
			Spaces []struct {
				Workers []struct{ Tokens int }
			}
		}
		if strings.Contains(request, "find_matches") {
			if err := json.Unmarshal(out, &answer); err != nil || len(answer.Spaces) != 1 ||
				len(answer.Spaces[0].Workers) == 0 || answer.Spaces[0].Workers[0].Tokens < 64 {
				t.Errorf("%s: %v: %s", request, err, out)
			}
			found++
		}
	}
	if found != 2 {
		t.Errorf("%d of the requests are find_matches", found)
	}
	hasConsole(t, address)
	repairsGap(t, address)
	losesWorker(t, address)
	begun := time.Now()
	_ = p.cmd.Process.Signal(os.Signal(syscall.SIGINT))
	p.wait(time.Minute)
	leavesNothing(t, home)
	t.Logf("ended within %v", time.Since(begun))
}

// hasConsole checks that the address has the page, and that there are choices to see.
func hasConsole(t *testing.T, address string) {
	t.Helper()
	page, err := get(t.Context(), address)
	if err != nil || !strings.Contains(string(page), "<title>kvatlas") {
		t.Errorf("no console at %q: %v, %.200s", address, err, page)
	}
	var chosen struct {
		Decisions []struct {
			Actual *int `json:"actual_tokens"`
		}
	}
	list, err := get(t.Context(), address+"api/decisions")
	if err == nil {
		err = json.Unmarshal(list, &chosen)
	}
	if err != nil {
		t.Error(err)
	}
	for _, d := range chosen.Decisions {
		if d.Actual != nil {
			return
		}
	}
	t.Errorf("of %d decisions none has what the engine found", len(chosen.Decisions))
}

// repairsGap checks that what is lost on purpose is noticed, asked for, and got.
func repairsGap(t *testing.T, address string) {
	t.Helper()
	eventually(t, time.Minute, func() error {
		body, err := get(t.Context(), address+"api/streams")
		if err != nil {
			return err
		}
		var seen struct {
			Recoveries []struct{ Worker, Cause, Became string }
		}
		if err := json.Unmarshal(body, &seen); err != nil {
			return err
		}
		for _, r := range seen.Recoveries {
			if r.Worker == "8" && r.Cause == "gap" && r.Became == "events" {
				return nil
			}
		}
		return fmt.Errorf("no gap is repaired: %v", seen.Recoveries)
	})
}

// losesWorker checks that requests fail at the worker that dies, and that it is back then.
func losesWorker(t *testing.T, address string) {
	t.Helper()
	var failed time.Time // the oldest
	eventually(t, time.Minute, func() error {
		body, err := get(t.Context(), address+"api/decisions?limit=1000")
		if err != nil {
			return err
		}
		var seen struct {
			Decisions []struct {
				Worker string `json:"worker_id"`
				Time   time.Time
				Failed bool
			}
		}
		if err := json.Unmarshal(body, &seen); err != nil {
			return err
		}
		for i := len(seen.Decisions) - 1; i >= 0; i-- { // the newest are first
			switch d := seen.Decisions[i]; {
			case d.Failed && d.Worker != "7":
				t.Fatalf("worker %s failed a request", d.Worker)
			case d.Failed && failed.IsZero():
				failed = d.Time
			case !failed.IsZero() && !d.Failed && d.Worker == "7" && d.Time.Sub(failed) > 2*time.Second: // away for so long
				return nil
			}
		}
		return fmt.Errorf("of %d choices the first that failed was at %v, and its worker has none since", len(seen.Decisions), failed)
	})
}

// So does whoever reads its lines, as in `make run | head`.
func TestDemoEndsWithItsReader(t *testing.T) {
	home := t.TempDir()
	p := start(t, home, "kvmocker", "--with-indexer", "--http-listen", "127.0.0.1:0")
	if !p.lines.Scan() {
		t.Fatal("kvmocker says nothing")
	}
	if err := p.stdout.Close(); err != nil {
		t.Fatal(err)
	}
	p.wait(time.Minute)
	leavesNothing(t, home)
}

// leavesNothing checks that the data directory is gone.
func leavesNothing(t *testing.T, home string) {
	t.Helper()
	left, err := os.ReadDir(home)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if f.IsDir() {
			t.Errorf("%s is left behind", f.Name())
		}
	}
}
