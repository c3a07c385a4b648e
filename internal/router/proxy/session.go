package proxy

import (
	"bytes"
	"encoding/binary"
	"net/http"

	"github.com/zeebo/xxh3"

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

// recognise finds out what session the request is of. What its client calls it comes before
// what harnesses do, in headers and then in the body, and that before its messages.
func (p *Proxy) recognise(r *http.Request, q *call) {
	if h := p.cfg.SessionHeader; h != "" {
		if id := r.Header.Get(h); id != "" {
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
	if q.called != nil {
		q.session, q.inSession = xxh3.Hash128(q.called), true
	}
}

// harnessName returns what a member of a body calls the session; nil if it does not: OpenAI's
// prompt_cache_key, and of Anthropic's metadata a user_id that has the session in it, as Claude Code's.
func harnessName(key string, raw []byte) []byte {
	switch {
	case len(raw) < 3 || len(raw) > maxSessionName:
	case key == "prompt_cache_key" && raw[0] == '"', key == "metadata" && raw[0] == '{' && bytes.Contains(raw, []byte("session")):
		return raw
	}
	return nil
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
		if at, ok := p.sessions.get(sessionKey{q.m, ends[i%maxNewMessages]}, q.arrival); ok {
			q.follows = &at
			return
		}
	}
}
