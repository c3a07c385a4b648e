package tokens

import "cmp"

// State is what is known of whether a model's files make the tokens that its engines make.
type State uint8

// The states.
const (
	// Unproven: no engine's tokens were compared with these files'. Engines are asked.
	Unproven State = iota
	// Trusted: engines' tokens were the same, each time. Ids are used.
	Trusted
	// Disagrees: an engine's were others. Engines are asked, until the files are others or an
	// operator wants them compared anew.
	Disagrees
)

func (s State) String() string { return [...]string{"unproven", "trusted", "disagrees"}[s] }

// Kind is what is proven apart: that texts are encoded as the engine does says nothing of how
// chats are written, and that of how other APIs' conversations become chats.
type Kind uint8

// The kinds.
const (
	Texts Kind = iota
	Chats
	Messages    // conversations of /v1/messages
	Responses   // and of /v1/responses
	Detokenized // ids that become text again
	kinds
)

func (k Kind) String() string {
	return [...]string{"texts", "chats", "messages", "responses", "detokenized"}[k]
}

// Kind returns what the form's prompts are.
func (f Form) Kind() Kind {
	switch f {
	case Completion:
		return Texts
	case Message:
		return Messages
	case Response:
		return Responses
	case Detokenize:
		return Detokenized
	default:
		return Chats
	}
}

// Difference is where an engine's tokens were others than the files', or of ids the text, in bytes.
// It says nothing of what the text was.
type Difference struct {
	Worker   uint64 `json:"worker_id"`
	Prompts  string `json:"prompts"`  // the kind
	Position int    `json:"position"` // of the first token that differs
	Ours     int    `json:"ours"`     // how many tokens there were
	Theirs   int    `json:"theirs"`
}

// Made says what was compared.
func (d *Difference) Made() string {
	if d.Prompts == Detokenized.String() {
		return "text of tokens"
	}
	return "tokens"
}

// Diff returns where two prompts differ; -1 if they do not.
func Diff[T comparable](a, b []T) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

// Proof is what comparisons have shown of one model's files. It is a state machine without
// clock or I/O, and not safe for concurrent use.
//
//	         an engine agrees              an engine differs
//	Unproven ────────────────► Trusted ─────────────────────► Disagrees
//	    ▲ └──────────────────────────────────────────────────────┘ │
//	    └────────── other files, or an operator: Renew ────────────┘
//
// A kind is trusted when it was proven; one difference of texts or chats, at whichever engine,
// ends the trust in all; one of another kind, in that: that ids become another text, or a message
// another chat, says nothing of the prompts that chats have.
type Proof struct {
	epoch   uint64 // of the files, or of the operator's word; a comparison counts in the one in which it began
	proven  [kinds]bool
	differs *Difference        // the first of the epoch, of texts and chats
	apart   [kinds]*Difference // likewise, of each other kind
	agreed  map[uint64]*[kinds]bool
}

// State returns the state of a kind.
func (p *Proof) State(k Kind) State {
	switch {
	case p.differs != nil, p.apart[k] != nil:
		return Disagrees
	case p.proven[k]:
		return Trusted
	}
	return Unproven
}

// Epoch returns the number that a comparison which begins now is to be told with.
func (p *Proof) Epoch() uint64 { return p.epoch }

// Differs returns the difference that ended the trust; nil if there is none.
func (p *Proof) Differs() *Difference {
	return cmp.Or(append([]*Difference{p.differs}, p.apart[:]...)...)
}

// Agrees reports whether the worker's engine itself was seen to agree, in the kind.
func (p *Proof) Agrees(worker uint64, k Kind) bool {
	of := p.agreed[worker]
	return of != nil && of[k] && p.State(k) != Disagrees
}

// Agreed notes that an engine's tokens were the same.
func (p *Proof) Agreed(epoch, worker uint64, k Kind) {
	if epoch != p.epoch {
		return
	}
	p.proven[k] = true
	of := p.agreed[worker]
	if of == nil {
		if p.agreed == nil {
			p.agreed = map[uint64]*[kinds]bool{}
		}
		of = new([kinds]bool)
		p.agreed[worker] = of
	}
	of[k] = true
}

// Differed notes that they were others.
func (p *Proof) Differed(epoch uint64, d Difference) {
	first := &p.differs
	for k := Messages; k < kinds; k++ {
		if d.Prompts == k.String() {
			first = &p.apart[k]
		}
	}
	if epoch == p.epoch && *first == nil {
		*first = &d
	}
}

// Renew forgets what was shown: the files are others, or an operator has mended what differed.
func (p *Proof) Renew() { *p = Proof{epoch: p.epoch + 1} }

// Left forgets a worker: who comes under its id is another engine. What it has shown of the
// files stays.
func (p *Proof) Left(worker uint64) { delete(p.agreed, worker) }
