package lab

import "time"

// Phase is what a request's time goes to.
type Phase uint8

// The phases. Waiting: for a place at an engine, or for a prompt's way to another. Computing:
// its prompt, until its first token. Preempted: from giving its blocks up until it runs again.
const (
	Waiting Phase = iota
	Computing
	Decoding
	Preempted
	NumPhases = iota
)

// String returns the phase's name in plots and rows.
func (p Phase) String() string {
	return [...]string{"waiting", "computing", "decoding", "preempted", "invalid"}[min(p, NumPhases)]
}

// Spent is time by phase.
type Spent [NumPhases]time.Duration

// stage is where a request is in its time.
type stage struct {
	phase Phase
	since time.Duration
	spent Spent
}

// goes ends a request's phase and begins another.
func (s *sim) goes(q *request, to Phase) {
	q.stage.spent[q.stage.phase] += s.now - q.stage.since
	q.stage.phase, q.stage.since = to, s.now
}

// runs begins the phase of one that an engine takes up.
func (s *sim) runs(q *request) {
	if q.begun {
		s.goes(q, Decoding)
		return
	}
	s.goes(q, Computing)
}
