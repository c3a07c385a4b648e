package proxy

import (
	"net"
	"net/http"
	"strconv"

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

// source is where an engine is to fetch a prompt's prefix from; without a host it is not to.
type source struct{ host, port string }

// sourceOf returns where the worker is to. The one that has it may have just left.
func (q *call) sourceOf(best *route.Answer) source {
	if best.Pull.Tokens == 0 {
		return source{}
	}
	from := q.m.Engine(best.Pull.From.Worker)
	if from == nil {
		return source{}
	}
	host, text, err := net.SplitHostPort(from.Peer)
	if err != nil {
		return source{}
	}
	port, err := strconv.Atoi(text)
	if port += int(best.Pull.From.DPRank); err != nil || port > 1<<16-1 {
		return source{}
	}
	return source{host, strconv.Itoa(port)}
}

// params are the engine's kv_transfer_params; nil if there are none.
func (s source) params() []byte {
	if s.host == "" {
		return nil
	}
	params := appendJSON([]byte(`{"remote_kv_source":{"kv_request_id":`), transferID())
	params = appendJSON(append(params, `,"remote_host":`...), s.host)
	return append(append(append(params, `,"remote_port":`...), s.port...), "}}"...)
}

// beside has the object, which are params of the engine, say so, too.
func (s source) beside(params string) []byte {
	if own := s.params(); own != nil {
		return append(append([]byte(params[:len(params)-1]), ','), own[1:]...)
	}
	return []byte(params)
}

// show says so in the header, too.
func (s source) show(h http.Header) {
	if s.host != "" {
		h.Set(headerSource, net.JoinHostPort(s.host, s.port))
	}
}
