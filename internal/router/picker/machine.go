package picker

import (
	"slices"

	"github.com/kvatlas/kvatlas/internal/extproc"
)

// state is how far the exchange of one stream is.
type state uint8

const (
	opened    state = iota // nothing was said
	reading                // the request's body comes
	choosing               // the request is here whole
	handed                 // the gateway was told where it goes
	answering              // the engine's answer comes
	ended                  // it was whole
	passed                 // the rest is none of ours: what comes goes on
)

var stateNames = [...]string{"opened", "reading", "choosing", "handed", "answering", "ended", "passed"}

func (s state) String() string { return stateNames[s] }

// input is what happens to it.
type input uint8

const (
	inHead       input = iota // of a request with a body
	inHeadAlone               // of one without
	inBody                    // a part of it
	inBodyEnd                 // its last part
	inTrailers                // behind the body, which ends with them
	inPicked                  // the router says where it goes
	inRefused                 // the router has answered it
	inAnswer                  // the head of the engine's answer
	inAnswerOnly              // that of one without a body
	inChunk                   // a part of it
	inChunkEnd                // its last part
	inAnswerTrailers
	inNothing // it is no part of an exchange
	inClosed  // the gateway has nothing more to say
	inCut     // the stream is gone
)

var inputNames = [...]string{
	"head", "head alone", "body", "body end", "trailers", "picked", "refused", "answer", "answer only", "chunk", "chunk end", "answer trailers", "nothing", "closed", "cut",
}

func (i input) String() string { return inputNames[i] }

// act is what is to be done for it, in this order.
type act uint8

const (
	serve       act = iota // have the router answer the request
	feed                   // give it a part of the body
	feedEnd                // say that there is no more
	goOn                   // let the gateway go on with the message
	direct                 // tell it where the request goes
	directWhole            // the same, in answer to the body
	echo                   // send it the body
	endTrailers            // let it go on with the trailers
	echoChunk              // send the message's part of the answer back
	tell                   // tell the router of the answer
	tellChunk              // give it a part of the answer
	tellEnd                // say that it is whole
	refuse                 // answer in place of an engine
	cancel                 // end the request
	fault                  // end the stream: the gateway breaks the protocol, or is not set up for it
)

var actNames = [...]string{
	"serve", "feed", "feed end", "go on", "direct", "direct whole", "echo", "end trailers", "echo chunk", "tell", "tell chunk", "tell end", "refuse", "cancel", "fault",
}

func (a act) String() string { return actNames[a] }

// machine says what is to be done when. It is pure.
type machine struct {
	state    state
	request  extproc.Mode // how the request's body comes
	response extproc.Mode // and the answer's
	body     bool         // there is one
	trailed  bool         // trailers end it
}

// step takes an input. The result is the caller's.
func (m *machine) step(in input) []act {
	switch {
	case in == inCut && m.state != ended:
		m.state = passed
		return []act{cancel}
	case in == inCut, in == inClosed:
		return m.close()
	case in == inNothing:
		return m.broken()
	case in == inPicked:
		return m.picked()
	case in == inRefused:
		if was := m.state; was == answering || was == ended || was == passed {
			return nil
		}
		m.state = passed
		return []act{refuse}
	case m.state == passed:
		return m.pass(in)
	case in <= inTrailers:
		return m.come(in)
	}
	return m.answer(in)
}

// come takes a part of the request.
func (m *machine) come(in input) []act {
	switch {
	case m.state == opened && in == inHeadAlone:
		m.state = choosing
		return []act{serve, feedEnd}
	case m.state == opened && in == inHead:
		switch m.body = true; m.request {
		case extproc.ModeFullDuplex:
			m.state = reading
			return []act{serve}
		case extproc.ModeBuffered, extproc.ModeBufferedPartial:
			m.state = reading
			return []act{goOn, serve}
		case extproc.ModeNone, extproc.ModeStreamed, extproc.ModeGRPC: // the prompt does not come before the choice
		}
	case m.state == reading && in == inBody && m.request == extproc.ModeFullDuplex:
		return []act{feed}
	case m.state == reading && in == inBodyEnd, m.state == reading && in == inBody && m.request == extproc.ModeBuffered: // which trailers may follow
		m.state = choosing
		return []act{feed, feedEnd}
	case m.state == reading && in == inTrailers:
		m.state, m.trailed = choosing, true
		return []act{feedEnd}
	case m.state != opened && m.state != reading && in == inTrailers && m.request != extproc.ModeFullDuplex:
		return []act{goOn}
	}
	return m.broken()
}

// picked hands the request on.
func (m *machine) picked() []act {
	if m.state != choosing {
		return nil // it is over
	}
	m.state = handed
	switch {
	case !m.body:
		return []act{direct}
	case m.request != extproc.ModeFullDuplex:
		return []act{directWhole}
	case m.trailed:
		return []act{direct, echo, endTrailers}
	}
	return []act{direct, echo}
}

// answer takes a part of the answer.
func (m *machine) answer(in input) []act {
	chunk := goOn
	if m.response == extproc.ModeFullDuplex {
		chunk = echoChunk
	}
	switch {
	case m.state == handed && in == inAnswer:
		m.state = answering
		return []act{goOn, tell}
	case m.state == handed && in == inAnswerOnly:
		m.state = ended
		return []act{goOn, tell, tellEnd}
	case in == inAnswer, in == inAnswerOnly: // the gateway's own, before the choice
		if m.state == reading || m.state == choosing {
			m.state = passed
			return []act{goOn, cancel}
		}
	case m.state == answering && in == inChunk:
		return []act{chunk, tellChunk}
	case m.state == answering && in == inChunkEnd:
		m.state = ended
		return []act{chunk, tellChunk, tellEnd}
	case m.state == answering && in == inAnswerTrailers:
		m.state = ended
		return []act{goOn, tellEnd}
	case m.state == ended && in == inAnswerTrailers:
		return []act{goOn}
	}
	return m.broken()
}

// pass lets the gateway go on with what is none of the router's. What comes of a request that
// was refused needs no answer.
func (m *machine) pass(in input) []act {
	switch {
	case in == inChunk || in == inChunkEnd:
		if m.response == extproc.ModeFullDuplex {
			return []act{echoChunk}
		}
		return []act{goOn}
	case slices.Contains([]input{inAnswer, inAnswerOnly, inAnswerTrailers}, in):
		return []act{goOn}
	}
	return nil
}

// close takes the end of what the gateway says. Without the answer's body in its messages that
// is how the answer ends.
func (m *machine) close() []act {
	was := m.state
	m.state = passed
	switch {
	case was == answering && m.response == extproc.ModeNone:
		return []act{tellEnd}
	case was == ended:
		return nil
	}
	return []act{cancel}
}

func (m *machine) broken() []act {
	m.state = passed
	return []act{cancel, fault}
}
