package registry

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/reload"
)

// Without NATS there are the workers of the list and those that register over HTTP, in
// any form, at this process alone.
func TestWithoutNATSWorkersComeAndGo(t *testing.T) {
	r, err := Open(t.Context(), Config{Replica: "alone", Beat: time.Millisecond, Static: []Worker{{ID: 7, Model: "m", BlockSize: 16, Transport: NoEvents}}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if !r.Connected() {
		t.Error("what nobody could hear is missed")
	}
	sub := r.Subscribe(100)
	if list := r.Snapshot(false); len(list) != 1 || list[0].ID != 7 || list[0].Status() != "live" {
		t.Errorf("%+v", list)
	}
	const own = `{"worker_id":18446744073709551615,"model":"m","group":"g","block_size":16,"transport":"none","dp_ranks":[0,3],"endpoints":{"http":"http://127.0.0.1:8000"}}`
	for _, c := range []struct {
		unregister bool
		body       string
		status     int
	}{
		{false, `{"instance_id":9,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16}`, 201},
		{false, `{"instance_id":9,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16}`, 409},
		{false, `{"instance_id":9,"endpoint":"tcp://127.0.0.1:5557","modelname":"m","block_size":16,"type":"vLLM","dp_rank":1}`, 200},
		{false, own, 201},
		{false, own, 201}, // the same again is fine
		{false, strings.Replace(own, "8000", "8001", 1), 409},
		{false, strings.Replace(own, "127.0.0.1", "10.0.0.1", 1), 403},
		{false, strings.Replace(own, "http://", "ftp://", 1), 400},
		{false, strings.Replace(own, `"group"`, `"Group"`, 1), 400},
		{false, `{"worker_id":1}`, 400},
		{true, `{"instance_id":7,"model_name":"m"}`, 409},             // of the list
		{true, `{"worker_id":18446744073709551615,"model":"m"}`, 404}, // the group without a name has none
		{true, `{"worker_id":18446744073709551615,"model":"m","group":"g"}`, 200},
		{true, `{"instance_id":9,"model_name":"m","dp_rank":0}`, 200},
		{true, `{"instance_id":9,"model_name":"m"}`, 200},
		{true, `{"instance_id":9,"model_name":"m"}`, 404},
	} {
		serve := r.ServeRegister
		if c.unregister {
			serve = r.ServeUnregister
		}
		if status, body := serve(t.Context(), []byte(c.body)); status != c.status {
			t.Errorf("%s is answered with %d %s, want %d", c.body, status, body, c.status)
		}
	}
	for _, c := range []struct {
		resume bool
		body   string
		status int
		marked bool
	}{
		{false, `{"worker_id":7}`, 200, true},
		{false, `{"worker_id":"7"}`, 200, true}, // the same again is fine
		{true, `{"worker_id":7}`, 200, false},
		{true, `{"worker_id":7}`, 200, false},
		{false, `{"worker_id":9}`, 404, false}, // it has left
		{true, `{"worker_id":9}`, 404, false},
		{false, `{}`, 400, false},
		{false, `[`, 400, false},
	} {
		serve := r.ServeDrain
		if c.resume {
			serve = r.ServeResume
		}
		if status, body := serve(t.Context(), []byte(c.body)); status != c.status || r.IsDrained(7) != c.marked || r.IsDrained(9) {
			t.Errorf("%s is answered with %d %s, want %d; drained %t", c.body, status, body, c.status, r.IsDrained(7))
		}
	}
	var told []string
	for _, e := range sub.Next() {
		told = append(told, fmt.Sprintf("%v %d %v%s", e.Kind, e.Entry.ID, e.Entry.Ranks, e.Entry.Endpoints.HTTP))
	}
	want := []string{"joined 9 [0]", "updated 9 [0 1]", "joined 18446744073709551615 [0]http://127.0.0.1:8000", "updated 18446744073709551615 [0 3]http://127.0.0.1:8000",
		"updated 18446744073709551615 [3]http://127.0.0.1:8000", "left 18446744073709551615 [3]http://127.0.0.1:8000", "updated 9 [1]", "left 9 [1]", "updated 7 [0]", "updated 7 [0]"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
	if list := r.Snapshot(true); len(list) != 1 || len(r.mu.ledger.byKey)+len(r.mu.ledger.markers) != 0 {
		t.Errorf("what has left is kept: %+v", list)
	}
}

// Whatever order lists and registrations come in, the workers are what they say, and
// who follows the events knows the same.
func TestListsAndRegistrationsAddUp(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 15))
		r, err := Open(t.Context(), Config{Replica: "alone", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		sub := r.Subscribe(1000)
		static, over := map[uint64]uint32{}, map[uint64]map[uint32]bool{} // the first rank that is listed; those over HTTP
		followed := map[uint64]string{}
		for step := range 60 {
			id, rank := rng.Uint64N(4), rng.Uint32N(3)
			body := []byte(fmt.Sprintf(`{"worker_id":%d,"model":"m","block_size":16,"transport":"none","dp_ranks":[%d]}`, id, rank))
			switch rng.IntN(4) {
			case 0:
				var list []Worker
				clear(static)
				for i := range uint64(4) {
					if rng.IntN(2) == 0 {
						static[i] = rng.Uint32N(3)
						list = append(list, Worker{ID: i, Model: "m", BlockSize: 16, Transport: NoEvents, Role: Aggregated, Ranks: []uint32{static[i]}})
					}
				}
				r.mu.Lock()
				r.mu.ledger.setStatic(time.Now(), list)
				r.mu.Unlock()
			case 1:
				r.ServeUnregister(t.Context(), body)
				delete(over, id) // of all ranks: the form does not name one
			default:
				r.ServeRegister(t.Context(), body)
				if over[id] == nil {
					over[id] = map[uint32]bool{}
				}
				over[id][rank] = true
			}
			want := map[uint64]string{}
			for id := range uint64(4) {
				ranks := maps.Clone(over[id])
				if first, ok := static[id]; ok {
					if ranks == nil {
						ranks = map[uint32]bool{}
					}
					ranks[first] = true
				}
				if len(ranks) > 0 {
					want[id] = fmt.Sprint(slices.Sorted(maps.Keys(ranks)))
				}
			}
			is := map[uint64]string{}
			for _, e := range r.Snapshot(false) {
				is[e.ID] = fmt.Sprint(e.Ranks)
			}
			for _, e := range sub.Next() {
				if followed[e.Entry.Key.Worker] = fmt.Sprint(e.Entry.Ranks); e.Kind == Left {
					delete(followed, e.Entry.Key.Worker)
				}
			}
			if !maps.Equal(is, want) || !maps.Equal(followed, want) {
				t.Fatalf("seed %d, step %d: %v, followed as %v, want %v", seed, step, is, followed, want)
			}
		}
		sub.Close()
		r.Close()
	}
}

// The file's workers are those of the file as it is, but for one that is damaged.
func TestTheFileOfWorkersIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	worker := func(id int) string {
		return fmt.Sprintf("{worker_id: %d, model: m, block_size: 16, transport: none, endpoints: {http: 'http://h:%d'}}", id, id)
	}
	write("[" + worker(1) + "]")
	synctest.Test(t, func(t *testing.T) {
		r, err := Open(t.Context(), Config{Replica: "alone", File: path, Static: []Worker{{ID: 9, Model: "m", BlockSize: 16, Transport: NoEvents}}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		expect := func(want, bad string) {
			t.Helper()
			time.Sleep(2 * reload.LookEvery)
			synctest.Wait()
			got := ""
			for _, e := range r.Snapshot(false) {
				got += fmt.Sprint(e.ID, " ")
			}
			if err := r.FileErr(); got != want || bad == "" && err != nil || bad != "" && (err == nil || !strings.Contains(err.Error(), bad)) {
				t.Errorf("workers %swant %s(%v)", got, want, err)
			}
		}
		expect("1 9 ", "")
		write("[" + worker(2) + ", " + worker(3) + "]")
		expect("2 3 9 ", "")
		write("")
		expect("2 3 9 ", "empty")
		write("[" + strings.Replace(worker(4), "http://", "", 1) + "]")
		expect("2 3 9 ", "http")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		expect("2 3 9 ", "no such file")
		write("[" + worker(9) + "]") // also of the settings
		expect("9 ", "")
		write("[]")
		expect("9 ", "")
	})
}
