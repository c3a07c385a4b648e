package console

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

func steps(i int) []core.Step { return []core.Step{{Depth: uint32(i), First: 7}} }

// data returns the objects of the events of a name.
func data[T any](t *testing.T, parts []string, name string) (list []T) {
	t.Helper()
	for e := range strings.SplitSeq(strings.Join(parts, ""), "\n\n") {
		head, body, _ := strings.Cut(e, "\ndata: ")
		if head != "event: "+name {
			continue
		}
		var x T
		if err := json.Unmarshal([]byte(body), &x); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		list = append(list, x)
	}
	return list
}

type shownGroups struct {
	Epoch  uint64
	Unit   string
	Max    float64
	Groups []struct{ Key, State, Value string }
}

func cell(t *testing.T, text string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Readers get the same bytes; what did not change is not said again; a reader that has
// missed a frame gets all that it needs; what is not known is said to be so.
func TestFrames(t *testing.T) {
	f := newFixture(t, nil)
	f.store(ownSpace, ownWorker, 1, 2, 3)
	join := func(m metric) *reader {
		t.Helper()
		r, no := f.events.join(nil, m)
		if no != nil {
			t.Fatal(no)
		}
		t.Cleanup(r.Close)
		return r
	}
	a, b, c := join(held), join(held), join(age)
	first := frames(t, a, 1)
	if n := len(data[shownGroups](t, first, "members")) + len(data[shownGroups](t, first, "history")) + len(data[overview](t, first, "overview")); n != 3 {
		t.Fatalf("%s", first)
	}
	cells := data[shownGroups](t, first, "cells")
	if len(cells) != 1 || cells[0].Max != 1 || cells[0].Unit != "of capacity" || len(cells[0].Groups) != 2 {
		t.Fatalf("%+v", cells)
	}
	for _, g := range cells[0].Groups {
		switch v := cell(t, g.Value); {
		case g.Key == keyOf(ownSpace, "aggregated"):
			if v[0] != byte(math.Round(0.3*mostValue)) { // 3 of 10 blocks
				t.Errorf("%v", v)
			}
		case v[0] != unknown: // of the other one the capacity is not known
			t.Errorf("%v", v)
		}
	}
	if v := data[shownGroups](t, frames(t, c, 1), "cells"); cell(t, v[0].Groups[0].Value)[0] != unknown {
		t.Errorf("of a worker that never published an event the age is known: %+v", v)
	}
	o := data[overview](t, first, "overview")[0]
	if o.Totals.Events != nil || o.Totals.Lag != nil || o.Totals.Actual != nil || o.Totals.Blocks != 3 || o.Totals.Workers != 2 || o.Sampled == 0 {
		t.Errorf("%s", first)
	}
	frames(t, b, 1)
	x, err := a.Next(nil)
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Next(nil)
	if err != nil || !bytes.Equal(x, y) || &x[0] != &y[0] {
		t.Errorf("readers get bytes of their own: %v", err)
	}
	if bytes.Contains(x, []byte("event: cells")) || bytes.Contains(x, []byte("event: members")) {
		t.Errorf("what has not changed is told again: %s", x)
	}
	f.store(ownSpace, ownWorker, 1, 2, 3, 4, 5)
	for len(data[shownGroups](t, frames(t, a, 1), "cells")) == 0 { //nolint:revive // until it shows
	}
	if late := frames(t, b, 1); len(data[shownGroups](t, late, "cells")) != 1 || len(data[shownGroups](t, late, "members")) != 0 {
		t.Errorf("one that has missed a frame lacks something: %s", late)
	}
	f.store(ownSpace, 99, 8)
	for range 100 {
		part := frames(t, a, 1)
		if m := data[shownGroups](t, part, "members"); len(m) == 1 {
			if e := data[shownGroups](t, part, "cells")[0].Epoch; e != m[0].Epoch || e == cells[0].Epoch {
				t.Errorf("%s", part)
			}
			return
		}
	}
	t.Error("a worker that came is not told of")
}

// As many read as may, and no more; nothing is looked at while nobody reads; at the end all
// streams end.
func TestReadersAreBounded(t *testing.T) {
	f := newFixture(t, nil)
	var mu sync.Mutex
	var in []*reader
	refused := 0
	var all sync.WaitGroup
	for range 1000 {
		all.Go(func() {
			r, no := f.events.join(nil, held)
			mu.Lock()
			defer mu.Unlock()
			if no != nil {
				refused++
			} else {
				in = append(in, r)
			}
		})
	}
	all.Wait()
	if len(in) != 8 || refused != 992 {
		t.Errorf("%d read, %d are refused", len(in), refused)
	}
	f.events.mu.Lock()
	done := f.events.done
	f.events.mu.Unlock()
	for _, r := range in {
		r.Close()
		r.Close()
	}
	<-done // the sampler has ended
	tenant := "acme"
	r, no := f.events.join(&tenant, hit)
	if no != nil {
		t.Fatal(no)
	}
	defer r.Close()
	frames(t, r, 1)
	f.Close()
	for {
		if _, err := r.Next(nil); err != nil {
			break
		}
	}
	if _, no := f.events.join(nil, held); no == nil {
		t.Error("there is a reader after the end")
	}
	f.Close()
}

// A tenant has as many as it leaves to others, whoever comes first; who may see all has the
// rest; and what one gives back another one gets.
func TestATenantLeavesPlacesToOthers(t *testing.T) {
	f := newFixture(t, nil)
	join := func(tenant *string) (in []*reader) {
		t.Helper()
		for {
			r, no := f.events.join(tenant, held)
			if no != nil {
				if no.Status != http.StatusServiceUnavailable || !strings.Contains(no.Message, "--console-readers") {
					t.Errorf("%+v", no)
				}
				return in
			}
			t.Cleanup(r.Close)
			in = append(in, r)
		}
	}
	acme, other := "acme", "hidden-group"
	first := join(&acme)
	if second, third := join(&other), join(nil); len(first) != 4 || len(second) != 2 || len(third) != 2 {
		t.Fatalf("of 8 places %d, %d and %d are taken", len(first), len(second), len(third))
	}
	first[0].Close()
	if again := join(&other); len(again) != 0 {
		t.Errorf("the one place that is left is a tenant's that has two already")
	}
	first[1].Close()
	first[2].Close()
	if again := join(&other); len(again) != 1 {
		t.Errorf("of three that are left it gets %d", len(again))
	}
	for range maxAnswers / 2 { // as if under way
		if why := f.answers.take(&acme); why != "" {
			t.Fatal(why)
		}
	}
	if got := f.ask(&acme, secure.Reader, "GET", "api/streams", ""); got.Status != http.StatusServiceUnavailable || !strings.Contains(string(got.Body), "this tenant") {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	if got := f.ask(&other, secure.Reader, "GET", "api/streams", ""); got.Status != http.StatusOK {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

// pipes is a listener of connections in memory, without room for anything unread.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	c, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.conns) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A reader that never reads loses its place, and keeps nobody from having frames; a reader
// that reads goes on for as long as it likes, whatever the server's limits are for others.
func TestAReaderThatNeverReads(t *testing.T) {
	f := newFixture(t, nil)
	synctest.Test(t, func(t *testing.T) {
		c, err := New(f.cfg)
		if err != nil {
			t.Fatal(err)
		}
		ln := &pipes{conns: make(chan net.Conn)}
		server := &http.Server{Handler: c.Handler(nil, "/"), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = server.Serve(ln)
		}()
		dial := func() net.Conn {
			client, serving := net.Pipe()
			ln.conns <- serving
			if _, err := io.WriteString(client, "GET /api/events HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			return client
		}
		mute, good := dial(), dial()
		read := make(chan int)
		go func() { // ends with the connection
			n, b := 0, make([]byte, 1<<16)
			for {
				k, err := good.Read(b)
				n += bytes.Count(b[:k], []byte("event: overview"))
				if err != nil {
					read <- n
					return
				}
			}
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		readers := c.events.places.inUse()
		if readers != 1 {
			t.Errorf("%d readers are left", readers)
		}
		c.Close()
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		_, _ = mute.Close(), good.Close()
		if n := <-read; n < 55 {
			t.Errorf("who reads had %d frames in a minute", n)
		}
		<-done
	})
}

func TestScales(t *testing.T) {
	for x, want := range map[float64]float64{0: 1, 1: 1, 1.5: 2, 3: 5, 7: 10, 10: 10, 11: 20, 99: 100, 400: 500} {
		if got := round(x); got != want {
			t.Errorf("%v: %v, want %v", x, got, want)
		}
	}
	sc := scale{"x", 10}
	for x, want := range map[float64]byte{0: 0, -1: 0, 5: 127, 10: 254, 1e9: 254, math.Inf(1): 254} {
		if got := sc.value(x); got != want {
			t.Errorf("%v: %v, want %v", x, got, want)
		}
	}
	if sc.value(math.NaN()) != unknown {
		t.Error("what is unknown is shown as known")
	}
	for _, name := range []string{"", "held", "load", "hit", "lag", "age"} {
		if m, ok := metricOf(name); !ok || name != "" && m.String() != name {
			t.Errorf("%q: %v %v", name, m, ok)
		}
	}
	if _, ok := metricOf("unknown"); ok {
		t.Error("a metric that is none")
	}
}
