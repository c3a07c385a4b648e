package mockapi

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/mock"
)

// Fault is what goes wrong with a request, on purpose.
type Fault struct {
	Status     int  // answer this instead, if not 0
	Drop       bool // close the connection without an answer
	BreakAfter int  // close the connection after so many tokens, if not 0
}

// Config holds what a Server is made with. Model is needed.
type Config struct {
	Model  string
	Engine mock.Config
	// Step says how long a step takes; nil: no time at all.
	Step func(r *mock.Report) time.Duration
	// Sink takes the engine's events; nil: nobody. It is called by the Server's
	// goroutine, and the event lives until it returns.
	Sink func(ev *event.Event)
	// Fault, if set, is asked for every request to generate.
	Fault func(r *http.Request) Fault
	// Default is how many tokens are generated unless told; 0 is 16.
	Default int
}

var (
	errClosed  = errors.New("the engine has stopped")
	errBusy    = errors.New("the engine has no room")
	errRequest = errors.New("no prompt, or no tokens to generate")
)

// job is a request in the engine.
type job struct {
	id       uint64
	request  mock.Request
	tokens   chan int   // how many more are out; room for all
	cached   chan int   // one value, once it runs
	refused  chan error // one value, if the engine does not take it
	begun    bool
	left     int
	finished bool
}

// Server is one engine. It is an http.Handler.
type Server struct {
	cfg    Config
	mux    *http.ServeMux
	submit chan *job
	stop   chan struct{}
	done   chan struct{}
	once   sync.Once

	// Requests counts requests to generate, and Live those that are answered now.
	Requests, Live atomic.Int64
}

// New starts an engine. The error is mock.New's.
func New(cfg Config) (*Server, error) {
	if cfg.Sink == nil {
		cfg.Sink = func(*event.Event) {}
	}
	if cfg.Default == 0 {
		cfg.Default = 16
	}
	if cfg.Engine.BlockSize == 0 {
		cfg.Engine.BlockSize = mock.DefaultBlockSize
	}
	engine, err := mock.New(cfg.Engine, cfg.Sink)
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, submit: make(chan *job), stop: make(chan struct{}), done: make(chan struct{})}
	s.routes()
	go s.run(engine) // ends with Close
	return s, nil
}

// Close stops the engine; answers under way break off.
func (s *Server) Close() {
	s.once.Do(func() { close(s.stop) })
	<-s.done
}

// run steps the engine whenever there is work.
func (s *Server) run(engine *mock.Engine) {
	defer close(s.done)
	jobs := make(map[uint64]*job)
	next := uint64(0)
	admit := func(j *job) {
		next++
		j.id = next
		j.request.ID = next
		if err := engine.Admit(&j.request); err != nil {
			j.refused <- err
			return
		}
		jobs[j.id] = j
	}
	for {
		if engine.Idle() {
			select {
			case j := <-s.submit:
				admit(j)
			case <-s.stop:
				return
			}
		}
		for more := true; more; { // whoever waits takes part in the next step
			select {
			case j := <-s.submit:
				admit(j)
			case <-s.stop:
				return
			default:
				more = false
			}
		}
		r := engine.Step()
		if s.cfg.Step != nil && !s.wait(s.cfg.Step(r), admit) {
			return
		}
		report(r, jobs)
	}
}

// wait lets a step take its time, and requests arrive meanwhile. It reports
// false when the engine is to stop.
func (s *Server) wait(d time.Duration, admit func(*job)) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case j := <-s.submit:
			admit(j)
		case <-s.stop:
			return false
		}
	}
}

// report hands the tokens of a step to their requests. A request that goes on
// has one token a step; what a preemption delayed comes with its last one.
func report(r *mock.Report, jobs map[uint64]*job) {
	for _, b := range r.Began {
		if j := jobs[b.ID]; j != nil && !b.Again {
			j.cached <- b.Reused
		}
	}
	for _, id := range r.First {
		if j := jobs[id]; j != nil {
			j.begun = true
		}
	}
	for _, id := range r.Finished {
		if j := jobs[id]; j != nil {
			j.finished = true
			if j.left > 0 {
				j.tokens <- j.left
			}
			close(j.tokens)
			delete(jobs, id)
		}
	}
	for _, j := range jobs {
		if j.begun && j.left > 1 {
			j.left--
			j.tokens <- 1
		}
	}
}

// generate puts a prompt into the engine and returns the job, which runs on even
// if nobody listens.
func (s *Server) generate(prompt []uint32, output int) (*job, error) {
	size := s.cfg.Engine.BlockSize
	all := append(prompt[:len(prompt):len(prompt)], generated(prompt, output)...)
	// The last token's KV entries are never computed.
	local, err := core.LocalHashes(nil, all[:len(all)-min(output, 1)], size, core.HashOptions{})
	if err != nil {
		return nil, err
	}
	n := len(prompt) / size
	j := &job{
		request: mock.Request{Input: len(prompt), Output: output, Prompt: local[:n], Generated: local[n:]},
		tokens:  make(chan int, output+1), cached: make(chan int, 1), refused: make(chan error, 1), left: output,
	}
	select {
	case s.submit <- j:
	case <-s.stop:
		return nil, errClosed
	}
	return j, nil
}

// generated returns the tokens of an answer.
func generated(prompt []uint32, n int) []uint32 {
	sum := uint32(2166136261)
	for _, t := range prompt {
		sum = (sum ^ t) * 16777619
	}
	out := make([]uint32, n)
	for i := range out {
		sum = sum*1664525 + 1013904223
		out[i] = sum >> 1
	}
	return out
}

// Text returns the text that the engine answers a prompt with.
func Text(prompt []uint32, output int) string {
	var b []byte
	for _, t := range generated(prompt, output) {
		b = appendToken(b, t)
	}
	return string(b)
}

func appendToken(b []byte, t uint32) []byte {
	return strconv.AppendUint(append(b, ' '), uint64(t%100000), 10)
}

// Tokens returns the tokens of a text: each four bytes are one.
func Tokens(text string) []uint32 {
	tokens := make([]uint32, 0, len(text)/4+1)
	for i := 0; i < len(text); i += 4 {
		t := uint32(0)
		for _, c := range []byte(text[i:min(i+4, len(text))]) {
			t = t<<8 | uint32(c)
		}
		tokens = append(tokens, t)
	}
	return tokens
}
