package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
)

// fleetCluster is the programs that are measured. Each is a process, so that its
// memory is its own; all end with it.
type fleetCluster struct {
	o      fleetOptions
	log    io.Writer
	out    chan fleetNews // what the workers' processes say, but for their states
	server *fleetProcess  // nil: embedded in the first kvindexer
	// indexers have a share each; asked is the one that asks them, if there are several,
	// and then there is no router.
	indexers []*fleetProcess
	asked    *fleetProcess
	router   *fleetProcess
	shares   []*fleetProcess // the workers
	address  string          // of the server; or broker.Embedded
	runs     uint64          // of workers' processes
}

// fleetProcess is one of the programs.
type fleetProcess struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	url   string // where it answers, if it does
	done  chan struct{}
	state []fleetHeld      // of a workers' process: what it said last
	said  chan []fleetHeld // likewise: its states
}

// start starts all, and returns once kvindexer holds what every worker does.
func (c *fleetCluster) start(ctx context.Context) error {
	c.address = broker.Embedded
	if c.o.external {
		port, err := freePort()
		if err != nil {
			return err
		}
		c.address = "nats://" + port
		if c.server, err = c.self("nats-server", "fleet-server", fleetServer{
			Address: port, Dir: filepath.Join(c.o.dir, "server"), Sync: c.o.sync, Always: c.o.always,
		}); err != nil {
			return err
		}
	}
	var urls []string
	for i := range c.o.shares {
		if err := c.startIndexer(ctx, i); err != nil {
			return err
		}
		urls = append(urls, c.indexers[i].url)
	}
	var err error
	if c.o.shares > 1 {
		c.asked, err = c.program(ctx, "kvindexer", "kvindexer-union", "--shares", strings.Join(urls, ","))
	} else {
		c.router, err = c.program(ctx, "kvrouter", "kvrouter")
		c.asked = c.indexers[0]
	}
	if err != nil {
		return err
	}
	for i := range c.o.processes {
		if _, err := c.startShare(ctx, i); err != nil {
			return err
		}
	}
	if err := c.states(ctx, c.shares...); err != nil {
		return err
	}
	if err := c.awaitIndexers(ctx, c.held()); err != nil {
		return fmt.Errorf("at the start: %w", err)
	}
	return nil
}

// held returns what all workers held when they said it last.
func (c *fleetCluster) held() (all []fleetHeld) {
	for _, p := range c.shares {
		all = append(all, p.state...)
	}
	return all
}

// startIndexer starts the i-th, or starts it again where it was.
func (c *fleetCluster) startIndexer(ctx context.Context, i int) error {
	name, args := "kvindexer", []string{}
	if c.o.shares > 1 {
		name, args = fmt.Sprintf("kvindexer-%d", i), []string{"--share", fmt.Sprintf("%d/%d", i, c.o.shares)}
	}
	if i < len(c.indexers) {
		args = append(args, "--http-listen", strings.TrimPrefix(c.indexers[i].url, "http://"))
	}
	p, err := c.program(ctx, "kvindexer", name, args...)
	if err != nil {
		return err
	}
	if i == len(c.indexers) {
		c.indexers = append(c.indexers, p)
	}
	c.indexers[i] = p
	return nil
}

// program starts one of the programs on a free port, and returns once it is ready.
func (c *fleetCluster) program(ctx context.Context, binary, name string, more ...string) (*fleetProcess, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	if i := slices.Index(more, "--http-listen"); i >= 0 {
		port = more[i+1]
		more = slices.Delete(more, i, i+2)
	}
	args := []string{"--nats", c.address, "--data-dir", filepath.Join(c.o.dir, "data"), "--nats-sync", c.o.sync.String(),
		fmt.Sprintf("--nats-sync-always=%v", c.o.always), "--replica", name, "--log-level", "warn"}
	if binary == "kvindexer" {
		admin, err := freePort()
		if err != nil {
			return nil, err
		}
		args = append(args, "--http-listen", port, "--admin-listen", admin)
		fmt.Fprintf(c.log, "%s's profiles: http://%s/debug/pprof/\n", name, admin)
	} else {
		args = append(args, "--http-listen", "127.0.0.1:0", "--admin-listen", port)
	}
	cmd := exec.Command(filepath.Join(c.o.bin, binary), append(args, more...)...)
	cmd.Env = []string{"HOME=" + c.o.dir} // none of the user's settings
	p, err := c.run(name, cmd, nil)
	if err != nil {
		return nil, err
	}
	p.url = "http://" + port
	if err := c.awaitReady(ctx, p); err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// awaitReady waits until the program answers that it is ready.
func (c *fleetCluster) awaitReady(ctx context.Context, p *fleetProcess) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if answer, err := fleetGet(ctx, p.url+"/readyz"); err == nil {
			return answer.Close()
		}
		select {
		case <-p.done:
			return errors.Join(fmt.Errorf("%s has ended: see its log", p.name), c.tail(p.name))
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not ready: %w", p.name, ctx.Err()), c.tail(p.name))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// startShare starts the process of one part of the workers.
func (c *fleetCluster) startShare(_ context.Context, i int) (*fleetProcess, error) {
	c.runs++
	first := c.o.workers * i / c.o.processes
	perSecond := c.o.rate / float64(c.o.burst) / float64(c.o.workers) // bursts of a worker
	share := fleetShare{
		URL: c.address, DataDir: filepath.Join(c.o.dir, "data"), First: uint64(first), Workers: c.o.workers*(i+1)/c.o.processes - first,
		Run: c.runs, Burst: c.o.burst, Blocks: c.o.blocks, Held: c.o.held, Every: time.Duration(float64(time.Second) / perSecond),
		Own: c.o.own, Probe: min(1, 2*c.o.probes/(perSecond*float64(c.o.workers))), Indexer: c.asked.url, Streams: c.o.shares, Batches: c.o.always,
	}
	p, err := c.self(fmt.Sprintf("workers-%d", i), "fleet-workers", share)
	if err != nil {
		return nil, err
	}
	if i == len(c.shares) {
		c.shares = append(c.shares, p)
	}
	c.shares[i] = p
	return p, nil
}

// self starts kvbench again as one of the commands that only it knows.
func (c *fleetCluster) self(name, command string, config any) (*fleetProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return c.run(name, exec.Command(self, command), config)
}

// run starts a process, with its configuration as the first line that it reads. Its
// log is a file.
func (c *fleetCluster) run(name string, cmd *exec.Cmd, config any) (*fleetProcess, error) {
	p := &fleetProcess{name: name, cmd: cmd, done: make(chan struct{}), said: make(chan []fleetHeld, 1)}
	log, err := os.OpenFile(c.logFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the process has its own
	cmd.Stderr = log
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s (see --bin): %w", name, err)
	}
	go func() {
		defer close(p.done)
		c.listen(p, out)
		_ = cmd.Wait() // how it ended is in its log
	}()
	if config != nil {
		text, err := json.Marshal(config)
		if err != nil {
			return nil, err
		}
		p.tell(string(text))
	}
	return p, nil
}

// listen reads what a workers' process says until it ends.
func (c *fleetCluster) listen(p *fleetProcess, out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var n fleetNews
		if json.Unmarshal(lines.Bytes(), &n) != nil {
			continue // another program's words
		}
		if n.State != nil {
			p.said <- n.State
			continue
		}
		select {
		case c.out <- n:
		default: // nobody measures
		}
	}
}

// states waits until the processes have said what their workers hold.
func (c *fleetCluster) states(ctx context.Context, shares ...*fleetProcess) error {
	late := time.After(patience)
	for _, p := range shares {
		select {
		case p.state = <-p.said:
		case <-p.done:
			return errors.Join(fmt.Errorf("%s has ended", p.name), c.tail(p.name))
		case <-late:
			return errors.Join(fmt.Errorf("%s does not say what it holds within %s", p.name, patience), c.tail(p.name))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// tell tells every workers' process.
func (c *fleetCluster) tell(word string) {
	for _, p := range c.shares {
		p.tell(word)
	}
}

func (p *fleetProcess) tell(word string) { _, _ = io.WriteString(p.in, word+"\n") } // one that has ended is noticed elsewhere

// kill ends the process as a power cut would, and waits for it.
func (p *fleetProcess) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// close ends what was started.
func (c *fleetCluster) close() error {
	var all sync.WaitGroup
	for _, p := range slices.Concat([]*fleetProcess{c.router, c.asked, c.server}, c.indexers, c.shares) {
		if p != nil {
			all.Go(p.kill)
		}
	}
	all.Wait()
	return nil
}

func (c *fleetCluster) logFile(name string) string { return filepath.Join(c.o.dir, name+".log") }

// tail returns the end of a program's log as an error; nil if it is empty.
func (c *fleetCluster) tail(name string) error {
	text, err := os.ReadFile(c.logFile(name))
	if err != nil || len(text) == 0 {
		return err
	}
	return errors.New(strings.TrimSpace(string(text[max(0, len(text)-2000):])))
}

// rss returns the resident memory of the programs in MiB, by name.
func (c *fleetCluster) rss() rssMiB {
	m := make(rssMiB)
	for name, list := range map[string][]*fleetProcess{
		"kvindexer": c.indexers, "kvrouter": {c.router}, "nats-server": {c.server}, "workers": c.shares,
	} {
		for _, p := range list {
			switch {
			case p == nil:
			case name == "kvindexer" && len(list) > 1:
				m[p.name] = float64(residentOf(fmt.Sprint(p.cmd.Process.Pid))) / (1 << 20)
			default:
				m[name] += float64(residentOf(fmt.Sprint(p.cmd.Process.Pid))) / (1 << 20)
			}
		}
	}
	return m
}

// freePort returns an address of this machine where nobody listens.
func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

// fleetGet asks a program; anything but 200 is an error.
func fleetGet(ctx context.Context, url string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("%s: %s", url, answer.Status), answer.Body.Close())
	}
	return answer.Body, nil
}
