package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
	"unsafe"

	chats "github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
)

// A response may go on with another one, by that one's name alone. What was said up to there
// only the engine that keeps it knows, and the router, of what it has passed on: of each
// response what it added, so that a conversation of any length takes the memory of its
// texts once. Others that share the workers are told, and tell.

// turn is what one response has added to a conversation.
type turn struct {
	Before string          // the response that it goes on with; "" for none
	Said   json.RawMessage // the messages, but for those of the system, and the answer's
}

// told is a turn as routers tell one another.
type told struct {
	Space  event.Space
	Owner  string // for whom it counts; "" of routers that do not say
	Worker uint64
	ID     string
	turn
}

// maxTold bounds what is heard of one response, in bytes: no router tells more.
const maxTold = 512 << 10

// maxPastTurns bounds a conversation's length.
const maxPastTurns = 1024

// turnCost is what a turn takes beside its texts, about.
const turnCost = 256

// past returns what was said up to a response, as package chat/api wants it.
func (p *Proxy) past(m *fleet.Model) func(id string) ([]jinja.Value, bool) {
	return func(id string) (all []jinja.Value, ok bool) {
		var turns []string
		size := 0
		for now := time.Now(); id != ""; {
			t, ok := p.turns.get(keptKey(m.Space, "responses", id), now)
			if size += len(t.Said); !ok || len(turns) == maxPastTurns || size > p.cfg.MaxPrompt*bytesPerToken {
				return nil, false
			}
			turns = append(turns, unsafe.String(unsafe.SliceData(t.Said), len(t.Said)))
			id = t.Before
		}
		for i := len(turns) - 1; i >= 0; i-- {
			v, err := jinja.ParseJSON(turns[i])
			list, isList := v.AsList()
			if err != nil || !isList {
				return nil, false
			}
			all = append(all, list...)
		}
		return all, true
	}
}

// stores reports whether the engine keeps a response: only what is plainly said to be kept is,
// as engines read several words as false.
func stores(req *jinja.Dict) bool {
	store := req.Get("store")
	return store.IsMissing() || store == jinja.True
}

// said returns what a request to /v1/responses adds to its conversation, and the answer to it.
// It is read anew when the answer is there: held until then it would take several times the
// body's memory.
func (p *Proxy) said(q *call, answer []jinja.Value) ([]byte, error) {
	defer p.reading(q)()
	v, err := jinja.ParseJSON(unsafe.String(unsafe.SliceData(q.data), len(q.data)))
	if err != nil {
		return nil, err
	}
	req, _ := v.AsDict()
	msgs, goOn, err := chats.Input(req.Get("input"))
	if err != nil || goOn {
		return nil, errors.Join(err, errGoOn)
	}
	msgs = slices.DeleteFunc(msgs, func(v jinja.Value) bool {
		m, _ := v.AsDict()
		return m.Get("role") == jinja.Str("system")
	})
	text, err := jinja.AppendJSON(nil, jinja.List(append(msgs, answer...)...))
	return bytes.Clone(text), err // of which more would be kept
}

var errGoOn = errors.New("the answer goes on with what the request begins")

// listening takes from an answer of /v1/responses what it says.
type listening struct {
	events bool
	most   int
	line   []byte // or the whole answer
	last   bool   // the next line of data is the last event's
	whole  []byte // the last event
	over   bool   // it is too long, or nobody here can read it
}

// plainAnswer reports whether an answer comes as it is.
func plainAnswer(h http.Header) bool {
	how := h.Get("Content-Encoding")
	return how == "" || how == "identity"
}

// see takes a chunk of the answer.
func (l *listening) see(chunk []byte) {
	if l.over || l.whole != nil {
		return
	}
	if !l.events {
		l.add(chunk)
		return
	}
	for len(chunk) > 0 && l.whole == nil {
		n := bytes.IndexByte(chunk, '\n')
		if n < 0 {
			l.add(chunk)
			return
		}
		if l.add(chunk[:n]); l.over {
			return
		}
		chunk = chunk[n+1:]
		l.ended()
	}
}

// add keeps a part of a line, if the line may count.
func (l *listening) add(part []byte) {
	most := l.most
	if l.events && !l.last {
		most = 64 // the name of an event
	}
	room := max(most-len(l.line), 0)
	if l.over = len(part) > room && (!l.events || l.last); l.over {
		l.line = nil
		return
	}
	l.line = append(l.line, part[:min(room, len(part))]...)
}

// ended looks at a line that is whole.
func (l *listening) ended() {
	line := bytes.TrimRight(l.line, "\r")
	switch name, isEvent := bytes.CutPrefix(line, []byte("event:")); {
	case isEvent:
		kind := string(bytes.TrimSpace(name))
		l.last = kind == "response.completed" || kind == "response.incomplete"
	case l.last:
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			l.whole, l.line = data, nil
		}
	}
	l.line = l.line[:0]
}

// end returns the response's name and what its answer has added to the conversation; "" if that
// is not known, or not over yet. What of an answer the engine puts before the next one is its messages, each part
// a message of its own (vLLM 0.33.0, entrypoints/openai/responses/utils.py).
func (l *listening) end() (id string, said []jinja.Value) {
	data := l.whole
	if !l.events {
		data = l.line
	}
	v, err := jinja.ParseJSON(string(data))
	d, ok := v.AsDict()
	if l.over || err != nil || !ok {
		return "", nil
	}
	if l.events {
		if d, ok = d.Get("response").AsDict(); !ok {
			return "", nil
		}
	}
	if status, _ := d.Get("status").AsString(); status != "completed" && status != "incomplete" {
		return "", nil
	}
	id, _ = d.Get("id").AsString()
	output, ok := d.Get("output").AsList()
	if !ok {
		return "", nil
	}
	for _, o := range output {
		item, ok := o.AsDict()
		if !ok {
			return "", nil
		}
		if item.Get("type") != jinja.Str("message") {
			continue
		}
		parts, _ := item.Get("content").AsList()
		for _, x := range parts {
			part, ok := x.AsDict()
			if !ok {
				return "", nil
			}
			if _, isText := part.Get("text").AsString(); !isText {
				return "", nil
			}
			m := jinja.NewDict(2)
			m.Set("role", jinja.Str("assistant"))
			m.Set("content", part.Get("text"))
			said = append(said, m.Value())
		}
	}
	return id, said
}

// remember keeps what an answer has added, and tells other routers.
func (p *Proxy) remember(q *call, worker uint64, l *listening) {
	id, answer := l.end()
	var text []byte
	var err error
	if id != "" && keptName(id) {
		text, err = p.said(q, answer)
	}
	if text == nil || err != nil {
		p.obs.forgotten.Inc()
		return
	}
	t := turn{Before: q.refers, Said: text}
	p.keepTurn(q.m.Space, q.payer.name, id, t)
	if p.cfg.TellTurn == nil {
		return
	}
	msg, err := json.Marshal(told{q.m.Space, q.payer.name, worker, id, t})
	if err == nil {
		err = p.cfg.TellTurn(msg)
	}
	if err != nil {
		p.limit.Warn("turn", "other routers are not told of a response; they route what goes on with it by load", errAttr(err), q.attr())
	}
}

func (p *Proxy) keepTurn(sp event.Space, owner, id string, t turn) {
	p.turns.putFor(owner, keptKey(sp, "responses", id), t, int64(len(t.Said)+len(t.Before)+turnCost), time.Now())
}

// HearTurn takes what another router tells of a response.
func (p *Proxy) HearTurn(msg []byte) {
	var t told
	if len(msg) > maxTold {
		p.limit.Warn("hear", "what another router tells of a response is too long, and not kept", slog.Int("bytes", len(msg)), slog.Int("most", maxTold))
		return
	}
	if err := json.Unmarshal(msg, &t); err != nil || !keptName(t.ID) || t.ID == "" || t.Before != "" && !keptName(t.Before) {
		p.limit.Warn("hear", "what another router tells of a response cannot be read", slog.Int("bytes", len(msg)))
		return
	}
	for _, m := range p.fleet.Models() {
		if m.Space == t.Space {
			t.ID, t.Before = strings.Clone(t.ID), strings.Clone(t.Before)
			p.keepTurn(m.Space, t.Owner, t.ID, t.turn)
			p.keptBy(m, t.Owner, "responses", t.ID, t.Worker)
		}
	}
}
