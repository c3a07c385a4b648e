package picker

import (
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
)

// headerPrefill tells llm-d's sidecar, before a decode worker, whom to ask. A client's, as others that make
// a server connect to where they say, is none of the request that the proxy makes of its.
const (
	headerPrefill   = "x-prefiller-host-port"
	headerObjective = "x-gateway-inference-objective"
)

// reserved are those that are set here, if they are.
var reserved = []string{headerPrefill, extproc.EndpointKey}

// request makes an http.Request of its head; nil if it is none.
func request(m *extproc.Request) *http.Request {
	r := &http.Request{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, len(m.Headers)), ContentLength: -1, RemoteAddr: m.Source}
	for _, h := range m.Headers {
		switch h.Name {
		case ":method":
			r.Method = h.Value
		case ":path":
			r.RequestURI = h.Value
		case ":authority":
			r.Host = h.Value
		case ":scheme", ":protocol":
		default:
			name := textproto.CanonicalMIMEHeaderKey(h.Name)
			r.Header[name] = append(r.Header[name], h.Value)
		}
	}
	var err error
	if r.URL, err = url.ParseRequestURI(r.RequestURI); err != nil || r.Method == "" {
		return nil
	}
	if n, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		r.ContentLength = n
	}
	if m.End {
		r.ContentLength = 0
	}
	return r
}

// response makes an http.Response of its head.
func response(m *extproc.Request) *http.Response {
	r := &http.Response{Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, len(m.Headers)), ContentLength: -1}
	for _, h := range m.Headers {
		if h.Name == ":status" {
			r.StatusCode, _ = strconv.Atoi(h.Value) // 0 is none
			continue
		}
		name := textproto.CanonicalMIMEHeaderKey(h.Name)
		r.Header[name] = append(r.Header[name], h.Value)
	}
	if n, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		r.ContentLength = n
	}
	return r
}

// changes says what makes of the headers that came those that an engine is to get. came is as
// the gateway has them; length is that of the body to send.
func changes(came []extproc.Header, req *http.Request, to *proxy.Picked, length int) (set []extproc.Header, remove []string) {
	was := make(map[string][]string, len(came))
	path := ""
	for _, h := range came {
		if h.Name == ":path" {
			path = h.Value
		}
		if !strings.HasPrefix(h.Name, ":") {
			name := textproto.CanonicalMIMEHeaderKey(h.Name)
			was[name] = append(was[name], h.Value)
		}
	}
	set = append(set, extproc.Header{Name: extproc.EndpointKey, Value: strings.Join(to.Endpoints, ",")})
	if to.Prefill != "" {
		set = append(set, extproc.Header{Name: headerPrefill, Value: to.Prefill})
	}
	if wants := req.URL.RequestURI(); wants != path {
		set = append(set, extproc.Header{Name: ":path", Value: wants})
	}
	if n := was["Content-Length"]; n != nil && n[0] != strconv.Itoa(length) {
		set = append(set, extproc.Header{Name: "content-length", Value: strconv.Itoa(length)})
	}
	for name, values := range req.Header {
		if values == nil || ours(name) || slices.Equal(values, was[name]) {
			continue
		}
		set = append(set, extproc.Header{Name: name, Value: strings.Join(values, ", ")})
	}
	for name := range was {
		lower := strings.ToLower(name)
		switch {
		case slices.Contains(reserved, lower):
			if !slices.ContainsFunc(set, func(h extproc.Header) bool { return h.Name == lower }) {
				remove = append(remove, lower)
			}
		case req.Header[name] == nil && !ours(name):
			remove = append(remove, lower)
		}
	}
	return set, remove
}

// ours reports whether a header is the gateway's, which has the connections, or is not set from
// the request.
func ours(name string) bool {
	switch name {
	case "Content-Length", "Host", "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "User-Agent":
		return true
	}
	return slices.Contains(reserved, strings.ToLower(name))
}

// headersOf returns headers as a gateway is told to set them.
func headersOf(h http.Header) (list []extproc.Header) {
	for name, values := range h {
		switch name {
		case "Connection", "Content-Length", "Date":
		default:
			for _, v := range values {
				list = append(list, extproc.Header{Name: name, Value: v})
			}
		}
	}
	return list
}

func scoresOf(list []proxy.Score) []extproc.Score {
	scores := make([]extproc.Score, len(list))
	for i, s := range list {
		scores[i] = extproc.Score(s)
	}
	return scores
}
