package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// scene is the engines and the routers before them.
type scene struct {
	options
	dir     string
	stderr  io.Writer
	engines []*engine
	targets []target
	started []*process

	publishers []*events // without engines
}

// target is who is measured.
type target struct {
	name    string
	address string
	pid     int // 0 for the engines alone
}

type process struct {
	cmd *exec.Cmd
	log *bytes.Buffer
}

// open starts all that there is: engines alone, each kvrouter in both modes, smg.
func (s *scene) open(ctx context.Context) error {
	plain, err := s.fleet(ctx, false, nil)
	if err != nil {
		return err
	}
	s.targets = append(s.targets, target{name: "direct", address: plain[0].address})
	for _, r := range s.routers {
		name, path, _ := strings.Cut(r, "=")
		if err := s.router(ctx, name, path, plain); err != nil {
			return err
		}
		// Engines of its own: their events are published to whoever subscribes.
		publishing, err := s.fleet(ctx, true, nil)
		if err != nil {
			return err
		}
		if err := s.router(ctx, name+"+events", path, publishing); err != nil {
			return err
		}
		if s.files == "" {
			continue
		}
		w, err := s.loadWords(s.files)
		if err != nil {
			return err
		}
		if publishing, err = s.fleet(ctx, true, w); err != nil {
			return err
		}
		if err := s.router(ctx, name+"+tokens", path, publishing, "--tokenizers=m="+w.dir); err != nil {
			return err
		}
		if err := s.trusted(ctx, s.targets[len(s.targets)-1].address); err != nil {
			return err
		}
	}
	return s.gateway(ctx, plain)
}

// place is where an engine is.
type place struct{ address, events, replay string }

func (s *scene) fleet(ctx context.Context, publishing bool, w *words) (list []place, err error) {
	for range s.options.engines {
		e := &engine{chunks: s.chunks, words: w}
		if s.load > 0 {
			e.pause = s.pause
		}
		var p place
		if publishing {
			of := token
			if w != nil {
				of = binary.LittleEndian.Uint32
			}
			if e.events, err = newEvents(s.blocks, of); err != nil {
				return nil, err
			}
			p.events, p.replay = e.events.publisher.Endpoint(), e.events.publisher.ReplayEndpoint()
		}
		if p.address, err = startEngine(ctx, e); err != nil {
			return nil, err
		}
		s.engines, list = append(s.engines, e), append(list, p)
	}
	return list, nil
}

// router starts a kvrouter: by default, with the engines' events, or without any.
func (s *scene) router(ctx context.Context, name, path string, engines []place, args ...string) error {
	serves := func(address string) bool { return ask("http://" + address + "/v1/models") }
	if engines[0].events == "" {
		urls := make([]string, len(engines))
		for i, e := range engines {
			urls[i] = "http://" + e.address
		}
		return s.program(ctx, name, path, serves, "--nats=none", "--kv-events=false", "--model=m", "--engines="+strings.Join(urls, ","))
	}
	var workers []byte
	for i, e := range engines {
		workers = fmt.Appendf(workers, "- {worker_id: %d, model: m, block_size: %d, transport: zmq, total_blocks: %d, endpoints: {http: %q, events: {0: %q}, replay: {0: %q}}}\n",
			i, blockSize, s.blocks, "http://"+e.address, e.events, e.replay)
	}
	return s.replica(ctx, name, path, serves, workers, args...)
}

// replica starts a program of kvatlas that follows the events of listed workers.
func (s *scene) replica(ctx context.Context, name, path string, serves func(address string) bool, workers []byte, args ...string) error {
	list := filepath.Join(s.dir, name+".yaml")
	if err := os.WriteFile(list, workers, 0o600); err != nil {
		return err
	}
	return s.program(ctx, name, path, serves, append(args, "--data-dir="+filepath.Join(s.dir, name+".data"), "--registry-workers="+list)...)
}

// program starts one of kvatlas on a free port, which is a target once it serves.
func (s *scene) program(ctx context.Context, name, path string, serves func(address string) bool, args ...string) error {
	file := filepath.Join(s.dir, name+".address")
	p, err := s.start(path, append(args, "--log-level=warn", "--admin-listen=127.0.0.1:0", "--http-listen=127.0.0.1:0", "--address-file="+file)...)
	if err != nil {
		return err
	}
	return p.ready(ctx, func() bool {
		text, err := os.ReadFile(file)
		address := strings.TrimSpace(string(text))
		if err != nil || !serves(address) {
			return false
		}
		s.targets = append(s.targets, target{name, address, p.cmd.Process.Pid})
		return true
	})
}

// gateway starts smg's, if it is installed.
func (s *scene) gateway(ctx context.Context, engines []place) error {
	path, err := exec.LookPath(s.smg)
	if err != nil {
		fmt.Fprintf(s.stderr, "smg is left out: %q is not there (pip install smg==1.13.0 into a virtual environment, and give -smg its bin/smg)\n", s.smg)
		return nil
	}
	var free [2]net.Listener // smg chooses no ports itself
	for i := range free {
		if free[i], err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	port := func(i int) string { return strconv.Itoa(free[i].Addr().(*net.TCPAddr).Port) } //nolint:forcetypeassert // of a TCP listener
	address := "127.0.0.1:" + port(0)
	args := []string{"launch", "--host", "127.0.0.1", "--port", port(0), "--policy", "cache_aware", "--log-level", "error", "--prometheus-port", port(1), "--worker-urls"}
	if err := errors.Join(free[0].Close(), free[1].Close()); err != nil {
		return err
	}
	for _, e := range engines {
		args = append(args, "http://"+e.address)
	}
	p, err := s.start(path, args...)
	if err != nil {
		return err
	}
	return p.ready(ctx, func() bool {
		resp, err := http.Post("http://"+address+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`)) //nolint:noctx // a program of our own
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return false
		}
		s.targets = append(s.targets, target{"smg", address, p.cmd.Process.Pid})
		return true
	})
}

// trusted waits until a router makes chats' tokens itself.
func (s *scene) trusted(ctx context.Context, address string) error {
	p := s.started[len(s.started)-1]
	return p.ready(ctx, func() bool {
		if _, err := firstByte(ctx, address, conversation("hi")); err != nil {
			return false
		}
		resp, err := http.Get("http://" + address + "/v1/tokenizers") //nolint:noctx,gosec // a program of our own
		if err != nil {
			return false
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		text, err := io.ReadAll(resp.Body)
		return err == nil && bytes.Contains(text, []byte(`"chats":"trusted"`))
	})
}

// ask reports whether a router has models.
func ask(url string) bool {
	resp, err := http.Get(url) //nolint:noctx,gosec // a program of our own
	if err != nil {
		return false
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	var list struct{ Data []any }
	return json.NewDecoder(resp.Body).Decode(&list) == nil && resp.StatusCode == http.StatusOK && len(list.Data) > 0
}

func (s *scene) start(path string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(path, args...), log: new(bytes.Buffer)} //nolint:gosec,noctx // what the user named; close ends it
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	s.started = append(s.started, p)
	return p, nil
}

// ready waits until f is true.
func (p *process) ready(ctx context.Context, f func() bool) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if f() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s does not answer as it is to; it says: %s", p.cmd.Path, p.log)
}

func (s *scene) close() (err error) {
	for _, p := range s.started {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		late := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
		_ = p.cmd.Wait()
		late.Stop()
	}
	for _, e := range s.publishers {
		err = errors.Join(err, e.close())
	}
	for _, e := range s.engines {
		err = errors.Join(err, e.listener.Close())
		if e.events != nil {
			err = errors.Join(err, e.events.close())
		}
	}
	return err
}
