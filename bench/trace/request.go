package trace

import "time"

// Request is one prompt and the length of its answer.
type Request struct {
	Arrival time.Duration // since the start of the trace
	Input   int           // tokens of the prompt
	Output  int           // tokens generated
	// IDs name the prompt's content, IDTokens tokens each; the last one may
	// stand for fewer. Tokens of the prompt beyond them are the request's own.
	IDs []uint64
	// OutputIDs name the generated content in the same way, counted from the
	// end of the prompt; where absent or too few the rest is the request's own.
	OutputIDs []uint64
	Session   string // turns of one conversation share it; empty if unknown
	Serial    uint64 // number in its source, from 0; seeds what is its own
}

// Source yields requests in the order of their arrival.
type Source interface {
	// Next fills r, reusing its slices. It returns io.EOF after the last one.
	Next(r *Request) error
	// IDTokens is how many tokens an id stands for.
	IDTokens() int
}
