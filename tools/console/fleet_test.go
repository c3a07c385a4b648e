package console

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/progtest"
)

// build builds the programs into a folder.
func build(t *testing.T, names ...string) string {
	t.Helper()
	programs := &progtest.Programs{Root: filepath.Join("..", "..")}
	for _, name := range names {
		programs.Packages = append(programs.Packages, "./cmd/"+name)
	}
	t.Cleanup(programs.Close)
	dir, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// process is a running program; it is killed at the end of the test.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func start(t *testing.T, dir, home, name string, args ...string) *process {
	t.Helper()
	log, err := os.CreateTemp(home, name+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(filepath.Join(dir, name), args...), done: make(chan struct{})}
	p.cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("what %s said, its end:\n%s", name, text[max(0, len(text)-3000):])
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func until(t *testing.T, what string, f func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("in vain: %s: %v", what, err)
		}
	}
}

// hostile is a model's name that would do harm to a page that takes it for markup, and turn around what
// stands after it; shown is how it is to be read.
const (
	hostile = `<img src=x onerror="document.title='taken'">` + "\u202e\u200bm\a \u05d0\u05d1 7"
	shown   = `<img src=x onerror="document.title='taken'">\u{202e}\u{200b}m\u{7} ` + "\u2068\u05d0\u05d1\u2069 7"
)

// fleet is a router with its engines.
type fleet struct {
	t, whole        *testing.T // of the step, and of all
	home, dir       string
	router          *process
	engines, second *process
	public, admin   string
	nc              *nats.Conn
	js              jetstream.JetStream
	found           atomic.Bool // what worker 77 lost
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, whole: t, home: t.TempDir(), dir: build(t, "kvrouter", "kvmocker")}
	data, address := filepath.Join(f.home, "data"), filepath.Join(f.home, "address")
	f.router = start(t, f.dir, f.home, "kvrouter", "--data-dir", data, "--http-listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--address-file", address,
		"--discover-every=50ms", "--health-every=200ms", "--worker-header")
	until(t, "the router's addresses", func() error {
		text, err := os.ReadFile(address)
		f.public = "http://" + strings.TrimSpace(string(text))
		if err == nil && len(text) == 0 {
			err = os.ErrNotExist
		}
		return err
	})
	f.admin = f.adminAddress()
	mock := func(model string, first, workers int) *process {
		return start(t, f.dir, f.home, "kvmocker", "--data-dir", data, "--http", "--http-port=0", "--speed=20", "--cache-blocks=2048",
			"--model", model, "--first-worker", fmt.Sprint(first), "--workers", fmt.Sprint(workers))
	}
	f.engines, f.second = mock("m", 1, 4), mock(hostile, 50, 1)
	until(t, "an answer", func() error { return f.chat("m", "0", "hello") })
	until(t, "an answer of the other model", func() error { return f.chat(hostile, "0", "hello") })
	for i := range 24 {
		model := "m"
		if i%8 == 7 {
			model = hostile
		}
		if err := f.chat(model, fmt.Sprint(i%3), strings.Repeat(fmt.Sprint("part ", i%5, " of what is asked, at some length. "), 4+i%7)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// adminAddress finds the admin port in what the router logged.
func (f *fleet) adminAddress() (address string) {
	f.t.Helper()
	until(f.t, "the admin port", func() error {
		logs, _ := filepath.Glob(filepath.Join(f.home, "kvrouter-*.log"))
		text, err := os.ReadFile(logs[0])
		for line := range strings.Lines(string(text)) {
			if _, rest, ok := strings.Cut(line, `msg="admin port"`); ok {
				_, rest, _ = strings.Cut(rest, "address=")
				address = "http://" + strings.Fields(rest)[0]
				return nil
			}
		}
		return fmt.Errorf("it is not in the log: %v\n%s", err, text)
	})
	return address
}

// chat asks a question after one of a few system prompts.
func (f *fleet) chat(model, system, question string) error {
	body, err := json.Marshal(map[string]any{"model": model, "max_tokens": 4, "messages": []map[string]string{
		{"role": "system", "content": strings.Repeat("You are the assistant "+system+" of this house, helpful and brief. ", 20)},
		{"role": "user", "content": question},
	}})
	if err != nil {
		return err
	}
	resp, err := http.Post(f.public+"/v1/chat/completions", "application/json", bytes.NewReader(body)) //nolint:noctx // a test's own server
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

// The publisher of worker 77, who loses an event, and finds it again.
const loser, loserRun = 77, 9

var loserSpace = event.Space{Model: "m", BlockSize: 16}

// connect joins the router's own NATS server.
func (f *fleet) connect() {
	f.t.Helper()
	data := filepath.Join(f.home, "data")
	address, err := os.ReadFile(filepath.Join(data, "address"))
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(data, "credentials.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	var who struct{ User, Password string }
	if err := json.Unmarshal(text, &who); err != nil {
		f.t.Fatal(err)
	}
	if f.nc, err = nats.Connect("nats://"+strings.TrimSpace(string(address)), nats.UserInfo(who.User, who.Password)); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(f.nc.Close)
	if f.js, err = jetstream.New(f.nc); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.nc.Subscribe(stream.RecoverSubject("default", loserSpace, loser), f.recover); err != nil {
		f.t.Fatal(err)
	}
}

// recover answers who asks for what is missing, with all events from the one that is asked
// for to the third: once they are found.
func (f *fleet) recover(msg *nats.Msg) {
	const kindEvents, header = 2, "KVR\x01"
	if len(msg.Data) != 37 || !f.found.Load() {
		return // it asks again
	}
	from, le := binary.LittleEndian.Uint64(msg.Data[9:]), binary.LittleEndian
	b := append([]byte(header), kindEvents, 0)
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, loserRun), 3), 0)
	b = le.AppendUint64(b, 0) // no parts
	if from <= 3 {
		b = event.AppendBatch(b, loserBatch(from, 3))
	}
	if err := msg.Respond(b); err != nil {
		f.t.Error(err)
	}
}

// publish sends an event of one block.
func (f *fleet) publish(id uint64) {
	f.t.Helper()
	b := loserBatch(id, id)
	if _, err := f.js.Publish(f.t.Context(), stream.Subject("default", loserSpace, loser), event.AppendBatch(nil, b)); err != nil {
		f.t.Fatal(err)
	}
}

// loserBatch is a message with events of one block each.
func loserBatch(first, last uint64) *event.Batch {
	b := &event.Batch{Space: loserSpace, Worker: loser, Incarnation: loserRun, Published: time.Now().UnixNano()}
	for id := first; id <= last; id++ {
		b.Events = append(b.Events, event.Event{Kind: event.Stored, ID: id, Engine: []uint64{1000 + id}, Local: []uint64{2000 + id}, HasParent: id > 1, Parent: 999 + id})
	}
	return b
}
