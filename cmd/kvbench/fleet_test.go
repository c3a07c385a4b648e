package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/progtest"
)

// The programs are the real ones: every line has all fields, and the last is right
// after a tenth of the fleet and then kvindexer were killed.
func TestFleetPrintsLinesAndLosesNothing(t *testing.T) {
	programs := &progtest.Programs{Root: filepath.Join("..", ".."), Packages: []string{"./cmd/kvbench", "./cmd/kvindexer", "./cmd/kvrouter"}}
	t.Cleanup(programs.Close)
	bin, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, sync string }{
		{"--external --own-connections --sync 50ms", "50ms"},
		{"--sync-always", "always"},
		{"--shares 2 --external", "500ms"},
	} {
		cmd := exec.Command(filepath.Join(bin, "kvbench"), slices.Concat(strings.Fields(
			"fleet --workers 20 --processes 4 --rate 200 --minutes 0.03 --held 56 --probes 20"), strings.Fields(c.args))...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.args, err, stderr.String())
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		var r fleetResult
		d := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%s: %v: %s", c.args, err, out)
		}
		if r.Workers != 20 || r.Lost != 0 || r.Sync != c.sync || r.EventsPerS <= 0 || r.MessagesPerS <= 0 ||
			r.VisibleP50 <= 0 || r.VisibleP99 < r.VisibleP50 || r.RestartReadyS <= 0 || r.RecoverS <= 0 {
			t.Errorf("%s: %s\n%s", c.args, lines[len(lines)-1], stderr.String())
		}
		programs := []string{"kvindexer", "kvrouter", "workers"}
		if strings.Contains(c.args, "--shares") {
			programs = []string{"kvindexer-0", "kvindexer-1", "workers"}
		}
		if strings.Contains(c.args, "--external") {
			programs = append(programs, "nats-server")
		}
		for _, name := range programs {
			if _, ok := r.RSS[name]; !ok {
				t.Errorf("%s: no memory of %s: %v", c.args, name, r.RSS)
			}
		}
	}
}

func TestFleetRefusesAWrongCommandLine(t *testing.T) {
	for _, args := range []string{"--workers 3", "--rate 0", "--minutes -1", "--processes 1", "--burst 0", "--sync 1us", "--shares 0", "rest"} {
		var out, stderr strings.Builder
		if code := run(append([]string{"fleet"}, strings.Fields(args)...), &out, &stderr); code != 2 || out.Len() > 0 {
			t.Errorf("%s: exit %d: %s", args, code, stderr.String())
		}
	}
}

// indexOf answers as an index that holds what those workers do.
func indexOf(held []fleetHeld, length int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/workers", func(w http.ResponseWriter, _ *http.Request) {
		var list []string
		for _, h := range held {
			list = append(list, fmt.Sprintf(`{"worker_id":"%d","blocks":%d}`, h.Worker, int(h.Next-h.Oldest)*length))
		}
		_, _ = fmt.Fprintf(w, `{"spaces":[{"workers":[%s]}]}`, strings.Join(list, ","))
	})
	mux.HandleFunc("POST /v1/find_matches/batch", func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Requests []struct{ Hashes []uint64 } }
		if err := json.NewDecoder(bufio.NewReader(r.Body)).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var answers []string
		for _, one := range q.Requests {
			var found []string
			for _, h := range held {
				for n := h.Oldest; n != h.Next; n++ {
					if slices.Equal(h.chain(nil, n, length), one.Hashes) {
						found = append(found, fmt.Sprintf(`{"worker_id":"%d","longest":%d}`, h.Worker, length))
					}
				}
			}
			answers = append(answers, fmt.Sprintf(`{"spaces":[{"workers":[%s]}]}`, strings.Join(found, ",")))
		}
		_, _ = fmt.Fprintf(w, `{"answers":[%s]}`, strings.Join(answers, ","))
	})
	return mux
}

func TestFleetsJudgeSeesWhatIsWrong(t *testing.T) {
	c := &fleetCluster{o: fleetOptions{burst: 2, blocks: 3}}
	right := []fleetHeld{{Worker: 1, Run: 1, Oldest: 4, Next: 9}, {Worker: 2, Run: 1, Oldest: 0, Next: 5}}
	for _, wrong := range []struct {
		what   string
		is     []fleetHeld
		blocks int64
	}{
		{"nothing", right, 0},
		{"a worker is not there", right[:1], 12},
		{"an old run of a worker", []fleetHeld{right[0], {Worker: 2, Run: 2, Oldest: 0, Next: 5}}, 12},
		{"its newest chain", []fleetHeld{{Worker: 1, Run: 1, Oldest: 4, Next: 8}, right[1]}, 6},
		{"a chain that is gone", []fleetHeld{{Worker: 1, Run: 1, Oldest: 3, Next: 9}, right[1]}, 6},
	} {
		srv := httptest.NewServer(indexOf(wrong.is, 6))
		err := c.judge(t.Context(), &fleetProcess{name: "kvindexer", url: srv.URL}, right)
		var w *wrongIndex
		switch {
		case wrong.blocks == 0 && err != nil:
			t.Errorf("%s: %v", wrong.what, err)
		case wrong.blocks > 0 && (!errors.As(err, &w) || w.blocks != wrong.blocks):
			t.Errorf("%s: %v, want %d blocks", wrong.what, err, wrong.blocks)
		}
		srv.Close()
	}
}
