package downstream

import (
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/internal/router/head"
)

// badRequest is why a request is not one that the server takes.
type badRequest struct {
	status int
	reason string // a word of a fixed list, for metrics
	why    string
}

func (b *badRequest) Error() string { return b.why }

func malformed(why string) *badRequest {
	return &badRequest{http.StatusBadRequest, "malformed_head", why}
}

var (
	errLongHead = &badRequest{http.StatusRequestHeaderFieldsTooLarge, "head_too_large", "the request line and the headers are longer than the server allows"}
	errLine     = malformed("malformed request line")
	errHeader   = malformed("malformed header")
	errHost     = malformed("one valid Host header is required")
	errLength   = malformed("malformed Content-Length")
	errLengths  = &badRequest{http.StatusBadRequest, "two_lengths", "both Content-Length and Transfer-Encoding"}
	errEncoding = &badRequest{http.StatusNotImplemented, "transfer_encoding", "unsupported Transfer-Encoding"}
	errVersion  = &badRequest{http.StatusHTTPVersionNotSupported, "http_version", "unsupported protocol version"}
	errExpect   = &badRequest{http.StatusExpectationFailed, "expectation", "unknown expectation"}
)

// framing is what a head says of what follows it.
type framing struct {
	length            int64 // -1: not said
	chunked, encoded  bool
	hosts             int
	keepAlive, closes bool
	expects           bool
}

// parse reads a request's head into k.request, and makes its body ready.
func (k *conn) parse(data []byte) error {
	text := string(data) // the only copy: all strings of the request are parts of it
	line, rest := head.Line(text)
	r := &k.request
	if err := k.parseLine(line); err != nil {
		return err
	}
	f := framing{length: -1}
	if err := f.headers(r, rest); err != nil {
		return err
	}
	if f.hosts > 1 || f.hosts == 0 && r.ProtoMinor == 1 && r.Method != http.MethodConnect {
		return errHost
	}
	if r.URL.Host != "" {
		r.Host = r.URL.Host
	}
	switch {
	case f.encoded && f.length >= 0:
		return errLengths
	case f.encoded && (r.ProtoMinor != 1 || !f.chunked):
		return errEncoding
	}
	r.Close = f.closes || r.ProtoMinor == 0 && !f.keepAlive
	k.answer.begin(r)
	r.ContentLength = max(f.length, 0)
	k.body.begin(f.length, f.chunked, f.expects && r.ProtoMinor == 1)
	if f.chunked {
		r.ContentLength, r.TransferEncoding = -1, chunkedOnly
	}
	if f.chunked || f.length > 0 {
		r.Body = &k.body
	}
	return nil
}

var chunkedOnly = []string{"chunked"}

// parseLine reads the request line.
func (k *conn) parseLine(line string) (err error) {
	r := &k.request
	method, rest, _ := strings.Cut(line, " ")
	target, proto, ok := strings.Cut(rest, " ")
	if !ok || !head.Token(method) {
		return errLine
	}
	r.Method, r.RequestURI, r.Proto = method, target, proto
	switch r.Proto {
	case "HTTP/1.1":
		r.ProtoMajor, r.ProtoMinor = 1, 1
	case "HTTP/1.0":
		r.ProtoMajor, r.ProtoMinor = 1, 0
	case "HTTP/2.0":
		if r.ProtoMajor = 2; method != "PRI" {
			return errVersion
		}
	default:
		if v, ok := strings.CutPrefix(r.Proto, "HTTP/"); ok && len(v) == 3 && v[1] == '.' {
			return errVersion
		}
		return errLine
	}
	if plain(target) {
		k.url = url.URL{Path: target}
		r.URL = &k.url
		return nil
	}
	authority := method == http.MethodConnect && !strings.HasPrefix(target, "/")
	if authority {
		target = "http://" + target
	}
	if r.URL, err = url.ParseRequestURI(target); err != nil {
		return errLine
	}
	if authority {
		r.URL.Scheme = ""
	}
	return nil
}

// plain reports whether a target is a path that stands for itself.
func plain(target string) bool {
	if len(target) == 0 || target[0] != '/' || len(target) > 1 && target[1] == '/' {
		return false
	}
	for i := range len(target) {
		switch c := target[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.', c == '/':
		default:
			return false
		}
	}
	return true
}

// headers reads the lines of headers.
func (f *framing) headers(r *http.Request, text string) error {
	values := make([]string, 0, strings.Count(text, "\n")) // their own: some outlive the request
	for {
		var line string
		if line, text = head.Line(text); line == "" {
			break
		}
		name, value, ok := head.Field(line)
		if !ok {
			return errHeader // one that goes on in the next line, too
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if name == "Host" {
			if f.hosts++; !hostLike(value) {
				return errHost
			}
			r.Host = value
			continue
		}
		before, again := r.Header[name]
		if err := f.see(name, value); err != nil {
			return err
		}
		if name == "Transfer-Encoding" || again && name == "Content-Length" { // the same one
			continue
		}
		if again {
			r.Header[name] = append(before, value)
			continue
		}
		n := len(values)
		values = append(values, value)
		r.Header[name] = values[n : n+1 : n+1]
	}
	return nil
}

// see notes what a header says of the message.
func (f *framing) see(name, value string) error {
	switch name {
	case "Content-Length":
		n, err := strconv.ParseUint(value, 10, 63)
		if err != nil || value[0] == '+' || f.length >= 0 && f.length != int64(n) {
			return errLength
		}
		f.length = int64(n)
	case "Transfer-Encoding":
		f.chunked = !f.encoded && strings.EqualFold(value, "chunked")
		f.encoded = true
	case "Connection":
		for part := range strings.SplitSeq(value, ",") {
			part = strings.Trim(part, " \t")
			f.closes = f.closes || strings.EqualFold(part, "close")
			f.keepAlive = f.keepAlive || strings.EqualFold(part, "keep-alive")
		}
	case "Expect":
		if f.expects = strings.EqualFold(value, "100-continue"); !f.expects {
			return errExpect
		}
	}
	return nil
}

// hostLike reports whether a text may be a host: of what bytes it is (RFC 3986, 3.2.2).
func hostLike(host string) bool {
	for i := range len(host) {
		switch c := host[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c <= ' ' || c >= 0x7f || strings.IndexByte("!$%&'()*+,-.:;=[]_~", c) < 0:
			return false
		}
	}
	return true
}
