package sidecar

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// memory is a sink that keeps everything.
type memory struct {
	base   uint64
	events chan event.Event
}

func (m *memory) Publish(_ context.Context, ev event.Event) error {
	m.base++
	ev.Engine, ev.Local = append([]uint64(nil), ev.Engine...), append([]uint64(nil), ev.Local...)
	m.events <- ev
	return nil
}
func (m *memory) Flush(context.Context) error { return nil }
func (m *memory) Close(context.Context) error { return nil }
func (m *memory) last() uint64                { return m.base }
func (m *memory) setIncomplete(bool)          {}

// listen starts a socket of one rank with blocks of 4 tokens.
func listen(t *testing.T, dir string) (path string, events chan event.Event, stop func()) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	cfg := &Config{Socket: filepath.Join(dir, "s"), BlockSize: 4, MaxLine: 1 << 20}
	events = make(chan event.Event, 1000)
	var sock *socket
	st, err := newStream(streamConfig{
		dpRank: 0, identity: 1, store: file{filepath.Join(dir, "state")},
		open:     func(_ context.Context, o opening) (sink, error) { return &memory{o.last, events}, nil },
		position: func() []byte { return sock.inputs[0].position() },
		every:    time.Nanosecond, retry: time.Millisecond, log: log, m: newStreamMeters(metrics.NewSet(), 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	if sock, err = newSocket(cfg, []*stream{st}, log, obs.NewMetrics()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := st.run(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); sock.run(ctx) }()
	return cfg.Socket, events, func() {
		cancel()
		<-done
		if err := st.stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func next(t *testing.T, events chan event.Event) event.Event {
	t.Helper()
	select {
	case ev := <-events:
		return ev
	case <-time.After(time.Minute):
		t.Fatal("no event comes")
		return event.Event{}
	}
}

// peer is a client of the socket.
type peer struct {
	t   *testing.T
	c   net.Conn
	dec *json.Decoder
}

func dial(t *testing.T, path, hello string) (*peer, reply) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		c, err := net.Dial("unix", path)
		if err == nil {
			p := &peer{t, c, json.NewDecoder(c)}
			p.say(hello)
			if r := p.hear(); r.Type == "welcome" || !strings.Contains(r.Error, "connected already") {
				return p, r
			}
			c.Close() // the connection before is on its way out
		}
		if time.Now().After(deadline) {
			t.Fatalf("no welcome: %v", err)
		}
		<-time.After(time.Millisecond)
	}
}

func (p *peer) say(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.c, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) hear() (r reply) {
	p.t.Helper()
	_ = p.c.SetReadDeadline(time.Now().Add(time.Minute))
	if err := p.dec.Decode(&r); err != nil {
		p.t.Fatal(err)
	}
	return r
}

// kept waits until everything before the number is kept.
func (p *peer) kept(number uint64) {
	p.t.Helper()
	for {
		if r := p.hear(); r.Type == "kept" && *r.Next == number {
			return
		}
	}
}

const helloA = `{"type":"hello","version":1,"run":"a"}`

func TestTheSocketGoesOnWhereItWas(t *testing.T) {
	dir := t.TempDir()
	path, events, stop := listen(t, dir)
	p, r := dial(t, path, helloA)
	if r.Type != "welcome" || *r.Next != 0 {
		t.Fatalf("%+v", r)
	}
	if ev := next(t, events); ev.Kind != event.Cleared || !ev.AllTiers {
		t.Fatalf("the stream begins with %+v", ev)
	}
	p.say(`{"type":"stored","seq":0,"hashes":[-1,"2"],"tokens":[1,2,3,4,5,6,7,8],"salt":"x"}`)
	ev := next(t, events)
	want := blockhash.LocalHash([]uint32{5, 6, 7, 8}, blockhash.Seed("", "x"), nil)
	if len(ev.Engine) != 2 || ev.Engine[0] != 1<<64-1 || ev.Engine[1] != 2 || ev.Local[1] != want {
		t.Fatalf("%+v", ev)
	}
	p.say(`{"type":"stored","seq":1,"hashes":[2]}`) // it is held: nothing changes
	p.say(`{"type":"removed","seq":2,"hashes":[2]}`)
	if ev := next(t, events); ev.Kind != event.Removed || ev.Engine[0] != 2 {
		t.Fatalf("%+v", ev)
	}
	p.c.Close()
	stop()

	path, events, stop = listen(t, dir)
	p, r = dial(t, path, helloA)
	if *r.Next != 3 {
		t.Fatalf("the restarted sidecar wants %d", *r.Next)
	}
	p.say(`{"type":"removed","seq":2,"hashes":[2]}`) // sent again
	p.say(`{"type":"nonsense","seq":3}`)
	if r := p.hear(); r.Type != "error" {
		t.Fatalf("%+v", r)
	}
	p.say(`{"type":"stored","seq":4,"parent":-1,"hashes":[3],"local_hashes":[33],"tier":"disk"}`)
	if ev := next(t, events); !ev.HasParent || ev.Parent != 1<<64-1 || ev.Tier != event.Disk {
		t.Fatalf("%+v", ev)
	}
	p.kept(5)
	p.say(`{"type":"removed","seq":9,"hashes":[3]}`) // a hole
	if ev := next(t, events); ev.Kind != event.Cleared {
		t.Fatalf("%+v", ev)
	}
	if ev := next(t, events); ev.Kind != event.Removed { // readers may know it
		t.Fatalf("%+v", ev)
	}
	p.c.Close()
	p, r = dial(t, path, `{"type":"hello","version":1,"run":"b"}`)
	if *r.Next != 0 {
		t.Fatalf("another run begins at %d", *r.Next)
	}
	if ev := next(t, events); ev.Kind != event.Cleared {
		t.Fatalf("%+v", ev)
	}
	p.c.Close()
	for _, bad := range []string{"x", `{"type":"hello","version":2,"run":"a"}`, `{"type":"hello","version":1}`, `{"type":"hello","version":1,"run":"a","dp_rank":1}`} {
		p, r := dial(t, path, bad)
		if r.Type != "error" {
			t.Errorf("%s is answered with %+v", bad, r)
		}
		p.c.Close()
	}
	stop()
}

const script = `
import sys
from kvatlas_publisher import Publisher
p = Publisher(sys.argv[1], log=lambda text: print(text, file=sys.stderr))
p.stored([11, 12], [1, 2, 3, 4, 5, 6, 7, 8])
p.stored([13], [9, 9, 9, 9], parent=12, lora="sql")
p.removed([13])
sys.exit(0 if p.close(20) and p.errors == 0 else 1)
`

// TestPythonModule runs the module's own tests, and the module against the socket.
func TestPythonModule(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3")
	}
	folder := filepath.Join("..", "..", "python")
	cmd := exec.Command(python, "-B", "-m", "unittest", "discover", "-s", "tests", "-t", ".")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	path, events, stop := listen(t, t.TempDir())
	defer stop()
	cmd = exec.Command(python, "-B", "-c", script, path)
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, kind := range []event.Kind{event.Cleared, event.Stored, event.Stored, event.Removed} {
		if ev := next(t, events); ev.Kind != kind {
			t.Fatalf("event %d is %+v, want %v", i, ev, kind)
		}
	}
}
