package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/client"
)

func open(t *testing.T, cfg client.Config) *client.Client {
	t.Helper()
	cfg.Timeout = patience
	if cfg.Backoff == 0 {
		cfg.Backoff = time.Millisecond
	}
	c, err := client.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestFindMatchesInBothForms(t *testing.T) {
	_, url, _ := start(t)
	group, none := "tenant", "nobody"
	clients := []*client.Client{
		open(t, client.Config{URL: url, Token: client.StaticToken(readerToken)}),
		open(t, client.Config{URL: url + "/", Token: client.StaticToken(readerToken), Binary: true}),
	}
	for name, f := range map[string]client.Find{
		"tokens":    {TokenIDs: prompt(11)},
		"hashes":    {Hashes: localHashes(8)},
		"no match":  {Hashes: []uint64{1<<64 - 1}},
		"no block":  {TokenIDs: prompt(3)},
		"empty":     {Hashes: []uint64{}},
		"group":     {Hashes: localHashes(8), Group: &group},
		"max":       {TokenIDs: prompt(11), MaxBlocks: 1},
		"early":     {TokenIDs: prompt(11), EarlyExit: true, BlockSize: blockSize},
		"trees":     {TokenIDs: prompt(11), TreeSizes: true},
		"lora":      {TokenIDs: prompt(11), LoraName: "l", CacheSalt: "s"},
		"all tiers": {Hashes: localHashes(4)},
	} {
		f.Model = "org/model"
		want, err := clients[0].FindMatches(t.Context(), f)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := clients[1].FindMatches(t.Context(), f)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: binary %+v, %v\nJSON %+v", name, got, err, want)
		}
	}
	for _, c := range clients {
		m, err := c.FindMatches(t.Context(), client.Find{Model: "org/model", TokenIDs: prompt(11), Group: new(string)})
		want := &client.Matches{Spaces: []client.Space{{BlockSize: blockSize, Blocks: 2, Ranks: []client.Rank{
			{Worker: 2, DPRank: 0, Device: 1, HostPinned: 1, Disk: 1, External: 1},
			{Worker: 2, DPRank: 1, Device: 2, HostPinned: 2, Disk: 2, External: 2},
			{Worker: 1<<63 + 1, Disk: 1, External: 1},
		}}}}
		if err != nil || !reflect.DeepEqual(m, want) {
			t.Fatalf("%v: %+v", err, m)
		}
		if best, ok := m.Spaces[0].Longest(); !ok || best != want.Spaces[0].Ranks[1] {
			t.Errorf("longest %+v", best)
		}
		for _, f := range []client.Find{{Model: "other", Hashes: []uint64{1}}, {Model: "org/model", Hashes: []uint64{1}, Group: &none}} {
			if _, err := c.FindMatches(t.Context(), f); !errors.Is(err, client.ErrUnknownModel) {
				t.Errorf("%v", err)
			}
		}
		var e *client.Error
		_, err = c.FindMatches(t.Context(), client.Find{Model: "org/model", Hashes: []uint64{1}, BlockSize: 1 << 30})
		if !errors.As(err, &e) || e.Status != 400 || e.Field != "block_size" || e.RequestID == "" {
			t.Errorf("%v", err)
		}
		if _, err := c.FindMatches(t.Context(), client.Find{Model: "org/model"}); err == nil {
			t.Error("neither tokens nor hashes")
		}
		if err := c.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		spaces, err := c.Workers(t.Context(), "org/model")
		if err != nil || len(spaces) != 2 || len(spaces[0].Workers) != 2 {
			t.Errorf("%v: %+v", err, spaces)
		}
	}
}

func TestTokens(t *testing.T) {
	_, url, _ := start(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := open(t, client.Config{URL: url, Token: client.TokenFile(file)})
	if _, err := c.Workers(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "reading the token") {
		t.Error(err)
	}
	write("wrong-0123456789abcdef")
	if _, err := c.Workers(t.Context(), ""); !errors.Is(err, client.ErrUnauthorized) {
		t.Error(err)
	}
	write(readerToken)
	if _, err := c.Workers(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if _, err := open(t, client.Config{URL: url}).Workers(t.Context(), ""); !errors.Is(err, client.ErrUnauthorized) {
		t.Error(err)
	}
}

func TestReservations(t *testing.T) {
	f, _, url := start(t)
	c := open(t, client.Config{URL: url})
	s, err := c.Select(t.Context(), client.Choose{Model: "org/model", TokenIDs: prompt(11)})
	if err != nil || s.Worker != 2 || s.DPRank != 1 || s.Overlap.Device != 8 || s.PrefillTokens != 3 || s.Endpoint != "http://engine-2:8000" {
		t.Fatalf("%v: %+v", err, s)
	}
	if n := f.router.Stats().Live; n != 0 {
		t.Errorf("selecting has booked %d", n)
	}
	worker := uint64(1)
	s, err = c.SelectAndReserve(t.Context(), client.Choose{Model: "org/model", BlockHashes: localHashes(8), Tokens: 11, Worker: &worker})
	if err != nil || s.Worker != 1 || s.ID == "" || f.router.Stats().Live != 1 {
		t.Fatalf("%v: %+v", err, s)
	}
	if err := c.Failed(t.Context(), s.ID, true, time.Second); err != nil {
		t.Error(err)
	}
	if err := c.PrefillComplete(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	for range 2 { // twice is fine
		if err := c.Free(t.Context(), s.ID); err != nil || f.router.Stats().Live != 0 {
			t.Error(err)
		}
	}
	if err := c.PrefillComplete(t.Context(), s.ID); !errors.Is(err, client.ErrUnknownSelection) {
		t.Error(err)
	}
	gone := uint64(99)
	if _, err := c.Select(t.Context(), client.Choose{Model: "org/model", TokenIDs: prompt(4), Worker: &gone}); err == nil {
		t.Error("worker 99 was chosen")
	}
}

// unreliable passes requests on and spoils some: before they are handled, or
// after, so that the client does not learn of it.
type unreliable struct {
	http.Handler
	n      atomic.Int64
	before func(n int64) bool
	after  func(n int64) bool
	status int
}

func (u *unreliable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := u.n.Add(1)
	if u.before != nil && u.before(n) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(u.status)
		return
	}
	if u.after != nil && u.after(n) {
		rec := httptest.NewRecorder()
		u.Handler.ServeHTTP(rec, r)
		panic(http.ErrAbortHandler) // the connection breaks
	}
	u.Handler.ServeHTTP(w, r)
}

func TestAttemptsAreRepeatedWhereThatMayHelp(t *testing.T) {
	f, _, _ := start(t)
	for status, again := range map[int]bool{429: true, 502: true, 503: true, 504: true, 500: false, 404: false, 529: false, 302: false} {
		u := &unreliable{Handler: f.serveRouter(), before: func(n int64) bool { return n <= 2 }, status: status}
		s := httptest.NewServer(u)
		c := open(t, client.Config{URL: s.URL})
		_, err := c.Select(t.Context(), client.Choose{Model: "org/model", TokenIDs: prompt(4)})
		var e *client.Error
		if again && (err != nil || u.n.Load() != 3) || !again && (!errors.As(err, &e) || e.Status != status || u.n.Load() != 1) {
			t.Errorf("%d: %v after %d attempts", status, err, u.n.Load())
		}
		s.Close()
	}
	u := &unreliable{Handler: f.serveRouter(), before: func(int64) bool { return true }, status: 503}
	s := httptest.NewServer(u)
	defer s.Close()
	if err := open(t, client.Config{URL: s.URL, Retries: -1}).Ready(t.Context()); err == nil || u.n.Load() != 1 {
		t.Errorf("%v after %d attempts", err, u.n.Load())
	}
	if _, err := open(t, client.Config{URL: s.URL, Retries: 2}).Workers(t.Context(), ""); err == nil || u.n.Load() != 4 {
		t.Errorf("%v after %d attempts", err, u.n.Load()-1)
	}
}

// However many answers get lost, no reservation stays behind but the one that
// the caller knows.
func TestLostAnswersLeaveNoReservation(t *testing.T) {
	f, _, _ := start(t)
	reserves := new(atomic.Int64)
	router := f.serveRouter()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "select_and_reserve") && reserves.Add(1)%3 != 0 {
			router.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		router.ServeHTTP(w, r)
	}))
	defer s.Close()
	c := open(t, client.Config{URL: s.URL})
	for i := range 10 {
		got, err := c.SelectAndReserve(t.Context(), client.Choose{Model: "org/model", TokenIDs: prompt(8)})
		if err != nil {
			t.Fatal(err)
		}
		if n := f.router.Stats().Live; n != i+1 || !f.router.Holds(got.ID) {
			t.Fatalf("%d reservations after %d", n, i+1)
		}
	}
}

func TestTheContextEndsACall(t *testing.T) {
	stuck := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	defer s.Close()
	defer close(stuck)
	c := open(t, client.Config{URL: s.URL, Backoff: time.Hour, MaxBackoff: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Workers(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	refused := open(t, client.Config{URL: "http://127.0.0.1:1", Backoff: time.Hour, MaxBackoff: time.Hour})
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond) // during the wait for a second attempt
	defer cancel()
	if _, err := refused.Workers(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	short, err := client.New(client.Config{URL: s.URL, Timeout: 10 * time.Millisecond, Retries: 1, Backoff: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := short.Workers(t.Context(), ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	f, _, _ := start(t)
	s := httptest.NewUnstartedServer(f.serveRouter())
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // a client is to refuse the certificate
	s.StartTLS()
	defer s.Close()
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	c := open(t, client.Config{URL: s.URL, TLS: &tls.Config{RootCAs: pool}})
	if _, err := c.Select(t.Context(), client.Choose{Model: "org/model", TokenIDs: prompt(4)}); err != nil {
		t.Error(err)
	}
	if err := open(t, client.Config{URL: s.URL}).Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
}

func TestWrongURLs(t *testing.T) {
	for _, u := range []string{"", "127.0.0.1:8090", "ftp://h", "http://", "http://h/?x=1", "http://[::1"} {
		if _, err := client.New(client.Config{URL: u}); err == nil {
			t.Errorf("%q was accepted", u)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"spaces":[`+strings.Repeat(" ", 4096)+`]}`)
	}))
	defer s.Close()
	if _, err := open(t, client.Config{URL: s.URL, MaxAnswer: 100}).Workers(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "larger than 100 bytes") {
		t.Error(err)
	}
	if _, err := open(t, client.Config{URL: s.URL, MaxAnswer: math.MaxInt64}).Workers(t.Context(), ""); err != nil {
		t.Error("as long as there is:", err)
	}
}

func TestNoTimeOrBoundIsBelowZero(t *testing.T) {
	for _, cfg := range []client.Config{{Timeout: -1}, {Backoff: -1}, {MaxBackoff: -1}, {MaxAnswer: -1}} {
		cfg.URL = "http://h"
		if _, err := client.New(cfg); err == nil {
			t.Errorf("%+v was accepted: no call would ever be answered", cfg)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	_, url, _ := start(t)
	c := open(t, client.Config{URL: url, Token: client.StaticToken(readerToken), Binary: true})
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				m, err := c.FindMatches(context.Background(), client.Find{Model: "org/model", TokenIDs: prompt(11)})
				if err != nil || len(m.Spaces) != 2 {
					t.Error(err, m)
					return
				}
			}
		})
	}
	wait.Wait()
}

func TestNothingButTheStandardLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "github.com/kvatlas/kvatlas/client" {
		t.Errorf("%v: %s", err, out)
	}
}

func FuzzBinaryAnswers(f *testing.F) {
	f.Add([]byte("KVA1\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00g\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("KVA1"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := client.ParseBinary(body)
		if err != nil {
			return
		}
		n := 0
		for _, s := range m.Spaces {
			n += 16 + 32*len(s.Ranks) + len(s.Group)
		}
		if n+16 > len(body) {
			t.Errorf("%d bytes became %s", len(body), fmt.Sprint(m))
		}
	})
}

// What the answers of /register and /unregister mean (docs/registry.md has them).
func TestRegister(t *testing.T) {
	status := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"error":"why"}`) // the client may be gone
	}))
	defer server.Close()
	c := open(t, client.Config{URL: server.URL, Retries: -1})
	for _, x := range []struct {
		status                              int
		registered, otherwise, unregistered bool
	}{{201, true, false, false}, {200, true, false, true}, {409, false, true, false}, {404, false, false, true}, {403, false, false, false}} {
		status = x.status
		err := c.Register(t.Context(), []byte(`{"worker_id":"a"}`))
		if (err == nil) != x.registered || errors.Is(err, client.ErrRegisteredOtherwise) != x.otherwise {
			t.Errorf("registered, %d: %v", status, err)
		}
		err = c.Unregister(t.Context(), "a", "m", "", 16)
		if (err == nil) != x.unregistered {
			t.Errorf("unregistered, %d: %v", status, err)
		}
	}
}
