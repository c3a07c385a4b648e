package proxy

import (
	"net"
	"net/http"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/route"
)

// headerSource is llm-d's, by which its sidecar of an engine is told who has a prompt's prefix,
// and tells its engine; an engine without one is told in the body (vLLM's P2P tier, 0.33).
const headerSource = "X-Kv-Cache-Source-Host-Port"

// transferHeader reports whether engines or their sidecars are told by the header whom to
// connect to for a prompt's KV entries. It is for the router to say, as with transferField.
func transferHeader(name string) bool {
	switch name {
	case headerSource, "X-Prefiller-Host-Port", "X-Prefiller-Url", "X-Encoder-Hosts-Ports", "X-Data-Parallel-Host-Port":
		return true
	}
	return false
}

// sourceOf returns where the worker is to fetch the prompt's prefix from; false: it is not to, or
// the one that has it has just left.
func (q *call) sourceOf(best *route.Answer) (host string, port int, ok bool) {
	if best.Pull.Tokens == 0 {
		return "", 0, false
	}
	from := q.m.Engine(best.Pull.From.Worker)
	if from == nil {
		return "", 0, false
	}
	host, text, err := net.SplitHostPort(from.Peer)
	if err != nil {
		return "", 0, false
	}
	base, err := strconv.Atoi(text)
	if port = base + int(best.Pull.From.DPRank); err != nil || port > 1<<16-1 {
		return "", 0, false
	}
	return host, port, true
}

// wholeBody returns what an engine gets that does all of a request, and is to fetch what the
// choice says.
func (p *Proxy) wholeBody(q *call, e *fleet.Engine, best *route.Answer) upstream.Payload {
	host, port, ok := q.sourceOf(best)
	if !ok {
		return p.body(q, e)
	}
	params := append([]byte(`{"remote_kv_source":{"kv_request_id":`), appendJSON(nil, transferID())...)
	params = append(appendJSON(append(params, `,"remote_host":`...), host), `,"remote_port":`...)
	return p.bodyWith(q, e, append(strconv.AppendInt(params, int64(port), 10), "}}"...))
}

// nameSource says so in the header, too.
func (p *Proxy) nameSource(h http.Header, q *call, best *route.Answer) {
	if host, port, ok := q.sourceOf(best); ok {
		h.Set(headerSource, net.JoinHostPort(host, strconv.Itoa(port)))
	}
}
