package proxy

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/http"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// How a request's session is known, beside --session-header.
const (
	SessionHarness = "harness" // by what agent harnesses call theirs
	SessionPrefix  = "prefix"  // by the messages that it goes on with
)

// harnessHeaders are those by which agent harnesses name their sessions, in canonical form: Claude Code's
// (code.claude.com/docs/en/llm-gateway-protocol), Codex's (by two names), OpenCode's and Crush's, Amp's.
var harnessHeaders = [...]string{
	"X-Claude-Code-Session-Id", "Session-Id", "Session_id", "X-Session-Affinity", "X-Opencode-Session", "X-Amp-Thread-Id",
}

// maxSessionName bounds what a session may be called, in bytes.
const maxSessionName = 1 << 10

// sessionKey is what a session is known by. What another tenant calls its own is another one.
type sessionKey struct {
	model   *fleet.Model
	tenant  string
	session xxh3.Uint128
}

// recognise finds out what session the request is of. What its client calls it comes before
// what harnesses do, in headers and then in the body, and that before its messages.
func (p *Proxy) recognise(r *http.Request, q *call) {
	if h := p.cfg.SessionHeader; h != "" {
		if id := cmp.Or(r.Header.Get(h), r.Header.Get(headerSession)); id != "" {
			q.session, q.inSession = xxh3.HashString128(id), true
			return
		}
	}
	if !p.cfg.SessionHarness {
		return
	}
	for _, h := range harnessHeaders {
		if v := r.Header[h]; len(v) == 1 && v[0] != "" && len(v[0]) <= maxSessionName {
			q.session, q.inSession = xxh3.HashString128(v[0]), true
			return
		}
	}
	for _, name := range [...][]byte{q.cacheKey, q.agent} {
		if name != nil {
			q.session, q.inSession = xxh3.Hash128(name), true
			return
		}
	}
}

// sessionName returns the JSON of a text that may be a session's name; nil of anything else.
func sessionName(raw []byte) []byte {
	if len(raw) < len(`"x"`) || len(raw) > maxSessionName || raw[0] != '"' {
		return nil
	}
	return raw
}

// agentName returns what Anthropic's metadata calls the session; nil if it does not: a user_id that has
// one in it, as Claude Code's, not one that is but the user.
func agentName(metadata []byte) []byte {
	id, err := member(metadata, "user_id")
	if err != nil || !bytes.Contains(id, []byte("_session_")) && !bytes.Contains(id, []byte("session_id")) {
		return nil
	}
	return sessionName(id)
}

const (
	// maxSessionMessages bounds how many messages of a conversation are looked at, and maxNewMessages
	// how many of them may be new: a turn brings an answer, and what tools say to it.
	maxSessionMessages = 1 << 12
	maxNewMessages     = 64
)

// extended finds the session of a request that names none by its messages: that of the one which had all
// of them but the last ones. It is asked where tokens are not looked up: else the index knows
// the conversation by its blocks, and where they are.
func (p *Proxy) extended(q *call) {
	if q.inSession || q.known || !p.cfg.SessionPrefix || q.m == nil || len(q.messages) == 0 {
		return
	}
	defer p.reading(q)()
	var scan jsonscan.Reader
	scan.Reset(q.messages)
	if scan.Peek() != '[' {
		return
	}
	var ends [maxNewMessages]xxh3.Uint128 // of the conversation up to each message; of the last ones
	n, all := 0, xxh3.Uint128{}
	scan.Open('[')
	for first := true; scan.More(']', &first); n++ {
		if n == maxSessionMessages {
			return
		}
		message := xxh3.Hash128(scan.Raw())
		var b [32]byte
		binary.LittleEndian.PutUint64(b[:], all.Lo)
		binary.LittleEndian.PutUint64(b[8:], all.Hi)
		binary.LittleEndian.PutUint64(b[16:], message.Lo)
		binary.LittleEndian.PutUint64(b[24:], message.Hi)
		all = xxh3.Hash128(b[:])
		ends[n%maxNewMessages] = all
	}
	if scan.Err() != nil || n == 0 {
		return
	}
	// Its own end is what the next one goes on with. Where that is there already somebody said the
	// same: it may be anybody, and goes where any request would.
	q.session, q.inSession, q.unnamed = all, true, true
	for i := n - 2; i >= 0 && i > n-1-maxNewMessages; i-- {
		if at, ok := p.sessions.get(sessionKey{q.m, q.payer.name, ends[i%maxNewMessages]}, q.arrival); ok {
			q.follows = &at
			return
		}
	}
}
