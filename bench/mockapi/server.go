package mockapi

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/event"
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
	Loras  []string // adapters of it, served under their own names
	Engine mock.Config
	Ranks  int // data-parallel ranks, each an engine with its own cache; 0 is 1
	// Seed is added to the seed of local hashes: an engine whose events never
	// match what a router looks up.
	Seed uint64
	// Transfer is how a prompt computed elsewhere is taken over: TransferVLLM,
	// TransferSGLang, or "" for not at all. Prefill is set for an engine that
	// computes prompts for others.
	Transfer string
	Prefill  bool
	// Peer says that the engine fetches prefixes from others that a request names, and gives them
	// its own (of its rank 0). Link says how long its link takes to give so many tokens; nil: no time.
	Peer bool
	Link func(tokens int) time.Duration
	// Tokenizer makes the tokens of texts and chats; nil: four bytes are one, of a chat as its
	// messages stand one below the other. TokenizeTime says how long it takes for so many bytes;
	// nil: no longer than here.
	Tokenizer    *Tokenizer
	TokenizeTime func(bytes int) time.Duration
	// Kind is which engine it is, KindVLLM if empty, and Release which of its releases; empty: one
	// that takes the tokens of a chat with its request.
	Kind, Release string
	// Scores is how prompts of scores are made, and that there are routes for them; "" for none.
	Scores api.ScoreRule
	// Seen, if set, is told of each request to generate what its prompt is, and whether it
	// came as tokens.
	Seen func(body []byte, prompt []uint32, given bool)
	// Step says how long a step takes; nil: no time at all.
	Step func(r *mock.Report) time.Duration
	// Sink takes the engines' events; nil: nobody. It is called by the goroutine
	// of each rank, and the event lives until it returns.
	Sink sink
	// Blocks, if set, is told what the blocks of each prompt and answer are before the engine has
	// them.
	Blocks func(b *Blocks)
	// Wrong are mistakes of how the engine was started, of Wrongs.
	Wrong []string
	// Fault, if set, is asked for every request to generate.
	Fault func(r *http.Request) Fault
	// Default is how many tokens are generated unless told; 0 is 16.
	Default int
}

type sink = func(ev *event.Event)

// Blocks is the content of the blocks of one prompt and its answer.
type Blocks struct {
	Local      []uint64
	Tokens     []uint32 // of all of them, or more
	Lora, Salt string
}

// Mistakes of how an engine was started.
const (
	WrongSalt       = "salt"       // whatever is in front of it salts each prompt
	WrongUnreported = "unreported" // it does not say what was cached
	WrongClock      = "clock"      // its clock is an hour behind
	WrongSilent     = "silent"     // its events are off
	WrongLate       = "late"       // its events are
	WrongClaims     = "claims"     // it says that each prompt was cached, whatever it has
	WrongLost       = "lost"       // prompts from other engines do not come, and it fails, as vLLM's do (0.33.0, kv_load_failure_policy)
)

// Wrongs returns all of them.
func Wrongs() []string {
	return []string{WrongSalt, WrongUnreported, WrongClock, WrongSilent, WrongLate, WrongClaims, WrongLost}
}

var (
	errClosed      = errors.New("the engine has stopped")
	errBusy        = errors.New("the engine has no room")
	errRequest     = errors.New("no prompt, no tokens to generate, or no such rank")
	errNoTokenizer = errors.New("there is no tokenizer that could decode")
	errLost        = errors.New("the KV entries did not come")
	errBootstrap   = errors.New("a prefill engine needs bootstrap_host, bootstrap_port and bootstrap_room")
)

// Server is one worker. It is an http.Handler.
type Server struct {
	cfg   Config
	mux   *http.ServeMux
	ranks []*engineRank
	turn  atomic.Uint32 // of requests that name no rank
	stop  chan struct{}
	once  sync.Once
	kv    exchange
	id    uint64        // of this run
	front chan struct{} // of who tokenizes
	past  past

	// Requests counts requests to generate, and Live those that are answered
	// now. Aborted counts those whose client left.
	Requests, Live, Aborted atomic.Int64
	// Tokenized counts texts and chats that the tokenizer made tokens of.
	Tokenized atomic.Int64
	// Received counts prompts taken over from another engine, and Lost those
	// that should have been and were computed here instead.
	Received, Lost atomic.Int64
	// Given and Fetched count blocks of prompts that other engines fetched from here, and that
	// were fetched from them.
	Given, Fetched atomic.Int64

	link chan struct{} // of who gives blocks away
}

// New starts the engines of a worker. The error is mock.New's.
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
	if cfg.Engine.Blocks == 0 {
		cfg.Engine.Blocks = mock.DefaultBlocks
	}
	if cfg.Kind == "" {
		cfg.Kind = map[bool]string{true: KindSGLang, false: KindVLLM}[cfg.Transfer == TransferSGLang]
	}
	if cfg.Kind != KindVLLM && cfg.Kind != KindSGLang {
		return nil, fmt.Errorf("an engine of kind %q: %s and %s are known", cfg.Kind, KindVLLM, KindSGLang)
	}
	if cfg.Release == "" {
		cfg.Release = release(takesTokens[cfg.Kind])
	}
	s := &Server{cfg: cfg, id: rand.Uint64(), stop: make(chan struct{}), front: make(chan struct{}, 1), link: make(chan struct{}, 1)}
	for i := range max(cfg.Ranks, 1) {
		k, err := newEngineRank(&s.cfg, cfg.Sink, uint32(i), s.stop)
		if err != nil {
			return nil, err
		}
		s.ranks = append(s.ranks, k)
	}
	s.routes()
	for _, k := range s.ranks {
		go k.run() // ends with Close
	}
	return s, nil
}

// Close stops the engines; answers under way break off.
func (s *Server) Close() {
	s.once.Do(func() { close(s.stop) })
	for _, k := range s.ranks {
		<-k.done
	}
}

func (s *Server) is(wrong string) bool { return slices.Contains(s.cfg.Wrong, wrong) }

// rankOf returns the engine that the request names as vLLM's clients do, or the
// next one in turn.
func (s *Server) rankOf(r *http.Request) *engineRank {
	if text := r.Header.Get("X-Data-Parallel-Rank"); text != "" {
		if n, err := strconv.Atoi(text); err == nil && n >= 0 && n < len(s.ranks) {
			return s.ranks[n]
		}
		return nil
	}
	return s.ranks[int(s.turn.Add(1)-1)%len(s.ranks)]
}

// generate puts a prompt and its answer into the engine and returns the job, which runs on
// even if nobody listens.
func (s *Server) generate(ctx context.Context, k *engineRank, q *request, prompt, answer []uint32, received bool) (*job, error) {
	size := s.cfg.Engine.BlockSize
	lora := ""
	if q.Model != s.cfg.Model {
		lora = q.Model
	}
	if s.is(WrongSalt) {
		q.Salt = "in front of the engine"
	}
	all, output := append(prompt[:len(prompt):len(prompt)], answer...), len(answer)
	// The last token's KV entries are never computed.
	local, err := blockhash.LocalHashes(nil, all[:len(all)-min(output, 1)], size, blockhash.Options{Seed: blockhash.Seed(lora, q.Salt) + s.cfg.Seed})
	if err != nil {
		return nil, err
	}
	if s.cfg.Blocks != nil {
		s.cfg.Blocks(&Blocks{Local: local, Tokens: all, Lora: lora, Salt: q.Salt})
	}
	n := len(prompt) / size
	j := &job{
		request: mock.Request{Input: len(prompt), Output: output, Local: local, Received: received, Fetched: s.fetchBlocks(ctx, q, local[:n])},
		tokens:  make(chan int, output+1), cached: make(chan int, 1), refused: make(chan error, 1), left: output,
	}
	return j, k.do(func() { k.admit(j) })
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

// words are the tokens of an answer and the text of each.
func (s *Server) words(prompt []uint32, n int) (tokens []uint32, texts []string, err error) {
	if s.cfg.Tokenizer != nil {
		return s.cfg.Tokenizer.generated(prompt, n)
	}
	tokens, texts = generated(prompt, n), make([]string, n)
	for i, t := range tokens {
		texts[i] = string(appendToken(nil, t))
	}
	return tokens, texts, nil
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
