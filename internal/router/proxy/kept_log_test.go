package proxy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/accesslog"
)

// The access log says of requests without a choice, for what engines keep and to
// administer them, which engine answered and how they ended; log lines say whose they are.
func TestRequestsWithoutAChoiceAreLogged(t *testing.T) {
	var lines, logged strings.Builder // the log is closed before they are read, and warned of in the caller's goroutine
	quiet := slog.New(slog.DiscardHandler)
	log := accesslog.New(&lines, 1<<20, quiet)
	l, k := newKeepers(t)
	l.proxy.cfg.AccessLog, l.proxy.cfg.Administration = log, AdminOpen
	l.proxy.limit = obs.NewLimited(slog.New(slog.NewTextHandler(&logged, nil)), 0, nil)
	if status, data, _ := l.post("/v1/responses", `{"model":"org/model","input":"x"}`); status != 200 {
		t.Fatalf("%d %s", status, data)
	}
	const path = "/v1/responses/responses_1"
	at := k.at["responses/responses_1"]
	l.do("GET", path)
	l.forget()
	l.do("GET", path)
	l.do("GET", "/v1/responses/nobodys")
	l.do("GET", "/v1/files")
	l.do("POST", "/flush_cache")
	k.gone.Store(true)
	l.do("GET", path)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(lines.String()) {
		var e struct {
			Path, Model, Worker, Outcome string
			Rank                         *int   `json:"dp_rank"`
			ID                           string `json:"request_id"`
			Status                       int
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Rank != nil && len(got) > 0 {
			t.Errorf("no rank was chosen: %s", line)
		}
		got = append(got, fmt.Sprint(e.Path, " ", e.Model, " ", e.Worker, " ", e.Status, " ", e.Outcome))
		if e.Status == 502 && !strings.Contains(logged.String(), "request_id="+e.ID) {
			t.Errorf("the log does not name request %s: %s", e.ID, logged.String())
		}
	}
	one := fmt.Sprint(path, " org/model ", at)
	want := []string{
		fmt.Sprint("/v1/responses org/model ", at, " 200 ok"), one + " 200 ok", one + " 200 ok", "/v1/responses/nobodys   404 not_found",
		"/v1/files   200 ok", "/flush_cache org/model  200 ok", one + " 502 engine_unreachable",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q,\nwant %q", got, want)
	}
}
