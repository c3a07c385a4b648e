package proxy

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	chats "github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/route"
)

// prefix begins the headers that tell the router what to do, and those with
// which it says what it did.
const prefix = "X-Kvatlas-"

// The headers that override a choice, for trusted callers.
const (
	headerWorker      = prefix + "Worker"
	headerRank        = prefix + "Dp-Rank"
	headerWeight      = prefix + "Overlap-Weight"
	headerTemperature = prefix + "Temperature"
	headerAllowed     = prefix + "Allowed-Workers"
	headerExcluded    = prefix + "Excluded-Workers"
	headerOutput      = prefix + "Expected-Output"
	headerFirst       = prefix + "Ttft-Target"
	headerToken       = prefix + "Itl-Target"
	headerGroup       = prefix + "Group"
)

// headerPrefill names, in answers, the worker that computed the prompt.
const headerPrefill = prefix + "Prefill-Worker"

// headerRequest is how a request is called in its answer, in logs, and at the engine.
const headerRequest = "X-Request-Id"

// name gives the request the id that its client gives it, if that is short and plain,
// or else one that nobody else has.
func name(r *http.Request) []string {
	id := r.Header[headerRequest]
	if len(id) == 1 && edge.PlainID(id[0]) {
		id = []string{strings.Clone(id[0])} // decisions keep it: not the whole head with it
	} else {
		id = []string{edge.NewID()}
	}
	r.Header[headerRequest] = id
	return id
}

// headerEngineRank is how vLLM is told the data-parallel rank of a request.
const headerEngineRank = "X-Data-Parallel-Rank"

// takeKey lets clients of Anthropic's API, on the routes that they ask, give their token as they give that
// one's keys: in X-Api-Key, where they give no Authorization.
func takeKey(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header["X-Api-Key"]
		if len(key) == 1 && len(r.Header["Authorization"]) == 0 && asksAnthropic(r.URL.Path) {
			r.Header.Set("Authorization", "Bearer "+key[0])
		}
		h.ServeHTTP(w, r)
	})
}

// asksAnthropic reports whether Anthropic's clients ask the path.
func asksAnthropic(path string) bool {
	return asksMessages(path) || path == "/v1/models" || strings.HasPrefix(path, "/v1/models/")
}

// asksMessages reports whether the path is of Anthropic's API alone.
func asksMessages(path string) bool {
	return path == chats.PathMessages || strings.HasPrefix(path, chats.PathMessages+"/")
}

// hopByHop are the headers of one connection (RFC 9110, 7.6.1), in canonical
// form.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// copyHeaders copies what belongs to the message and not to its connection, nor
// to the router. Where that has said whose pages may ask (sharing), an engine does not.
func copyHeaders(dst, src http.Header) {
	named := namedBy(src["Connection"])
	_, shared := dst[allowOrigin]
	for name, values := range src {
		if hopByHop(name) || strings.HasPrefix(name, prefix) || named[name] || transferHeader(name) || shared && strings.HasPrefix(name, "Access-Control-") {
			continue
		}
		if shared && name == "Vary" {
			values = slices.Concat(dst[name], values)
		}
		dst[name] = values
	}
}

// forwardClient adds the client's address to the list of those that the request
// has come from. What the client itself put there is its word.
func forwardClient(h http.Header, r *http.Request) {
	const name = "X-Forwarded-For"
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return
	}
	if before := h[name]; len(before) > 0 {
		host = strings.Join(before, ", ") + ", " + host
	}
	h[name] = []string{host}
}

// namedBy returns the headers that Connection names, of which there may be thousands.
func namedBy(lists []string) (named map[string]bool) {
	for _, list := range lists {
		for part := range strings.SplitSeq(list, ",") {
			if part = strings.TrimSpace(part); part == "" || strings.EqualFold(part, "keep-alive") || strings.EqualFold(part, "close") {
				continue // of nearly all
			}
			if named == nil {
				named = make(map[string]bool)
			}
			named[http.CanonicalHeaderKey(part)] = true
		}
	}
	return named
}

func namedIn(lists []string, name string) bool {
	for _, list := range lists {
		for part := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(strings.TrimSpace(part), name) {
				return true
			}
		}
	}
	return false
}

// trusted reports whether the caller may override choices.
func (p *Proxy) trusted(r *http.Request) bool {
	addr, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	for _, t := range p.cfg.Trust {
		if t.Contains(addr.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// options reads the headers that override a choice. The error names the header.
func options(h http.Header) (o route.Options, err error) {
	o.Weight, err = floatHeader(h, headerWeight, err)
	o.Temperature, err = floatHeader(h, headerTemperature, err)
	o.Allowed, err = idsHeader(h, headerAllowed, err)
	o.Excluded, err = idsHeader(h, headerExcluded, err)
	if v := h.Get(headerWorker); v != "" && err == nil {
		var id uint64
		if id, err = strconv.ParseUint(v, 10, 64); err != nil {
			return o, badHeader(headerWorker, "a worker's id")
		}
		o.Worker = &id
	}
	if v := h.Get(headerRank); v != "" && err == nil {
		rank, perr := strconv.ParseUint(v, 10, 32)
		if perr != nil {
			return o, badHeader(headerRank, "a data-parallel rank")
		}
		r := uint32(rank)
		o.DPRank = &r
	}
	if v := h.Get(headerOutput); v != "" && err == nil {
		n, perr := strconv.ParseUint(v, 10, 31)
		if perr != nil {
			return o, badHeader(headerOutput, "a number of tokens")
		}
		o.ExpectedOutput = int(n)
	}
	o.FirstToken, err = durationHeader(h, headerFirst, err)
	o.Token, err = durationHeader(h, headerToken, err)
	return o, err
}

func badHeader(name, want string) error { return fmt.Errorf("header %s: give %s", name, want) }

func floatHeader(h http.Header, name string, err error) (*float64, error) {
	text := h.Get(name)
	if text == "" || err != nil {
		return nil, err
	}
	v, perr := strconv.ParseFloat(text, 64)
	if perr != nil || !(v >= 0 && v <= math.MaxFloat32) {
		return nil, badHeader(name, "a number of at least 0")
	}
	return &v, nil
}

func durationHeader(h http.Header, name string, err error) (*time.Duration, error) {
	text := h.Get(name)
	if text == "" || err != nil {
		return nil, err
	}
	d, perr := time.ParseDuration(text)
	if perr != nil || d < 0 {
		return nil, badHeader(name, "a time of at least 0, as 500ms")
	}
	return &d, nil
}

func idsHeader(h http.Header, name string, err error) ([]uint64, error) {
	text := h.Get(name)
	if text == "" || err != nil {
		return nil, err
	}
	ids := []uint64{}
	for part := range strings.SplitSeq(text, ",") {
		id, perr := strconv.ParseUint(strings.TrimSpace(part), 10, 64)
		if perr != nil {
			return nil, badHeader(name, "ids of workers with commas between")
		}
		ids = append(ids, id)
	}
	return ids, nil
}
