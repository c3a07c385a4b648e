package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Config says how a Client asks. URL is needed; every other field has a default
// for its zero value.
type Config struct {
	// URL is where the program listens: http://host:port or https://host:port.
	URL string
	// Token returns the bearer token for a request; nil sends none. See
	// StaticToken and TokenFile.
	Token func() (string, error)
	// TLS is for https; nil trusts the system's authorities.
	TLS *tls.Config
	// DialTLS makes connections for https in place of TLS, if not nil, with the TLS handshake done: for one who has
	// certificates change.
	DialTLS func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout bounds one attempt; 0 is 5 s.
	Timeout time.Duration
	// Retries is how often a failed attempt is repeated; 0 is 3, below 0 none.
	Retries int
	// Backoff is the most to wait before the first repetition, doubled for each
	// further one up to MaxBackoff; 0 is 50 ms and 2 s. The wait is a random part
	// of it, and at least what the server asks for with Retry-After, up to
	// MaxBackoff.
	Backoff, MaxBackoff time.Duration
	// Binary asks find_matches in its binary form, which costs both sides less.
	Binary bool
	// MaxAnswer bounds the bytes of an answer; 0 is 64 MiB.
	MaxAnswer int64
	// Connections bounds the idle connections that are kept; 0 is 64.
	Connections int
}

// Client asks one program, or several behind one address.
type Client struct {
	cfg  Config
	base *url.URL
	http *http.Client
}

// New returns a Client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" {
		return nil, fmt.Errorf("client: %q is no URL such as http://127.0.0.1:8090", cfg.URL)
	}
	if min(cfg.Timeout, cfg.Backoff, cfg.MaxBackoff) < 0 || cfg.MaxAnswer < 0 {
		return nil, fmt.Errorf("client: a time or bound is below 0: timeout %v, backoff %v to %v, answers of %d bytes", cfg.Timeout, cfg.Backoff, cfg.MaxBackoff, cfg.MaxAnswer)
	}
	cfg.Timeout, cfg.Retries, cfg.MaxAnswer = cmp.Or(cfg.Timeout, 5*time.Second), cmp.Or(cfg.Retries, 3), cmp.Or(cfg.MaxAnswer, 64<<20)
	cfg.Backoff, cfg.MaxBackoff = cmp.Or(cfg.Backoff, 50*time.Millisecond), cmp.Or(cfg.MaxBackoff, 2*time.Second)
	cfg.Connections = cmp.Or(cfg.Connections, 64)
	return &Client{cfg: cfg, base: u, http: &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: cfg.Timeout, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:     cfg.TLS,
			DialTLSContext:      cfg.DialTLS,
			TLSHandshakeTimeout: cfg.Timeout, // it goes on when the attempt has ended
			MaxIdleConns:        cfg.Connections,
			MaxIdleConnsPerHost: cfg.Connections,
			IdleConnTimeout:     50 * time.Second, // less than the servers' own, which would cut off a request
		},
		// The token is for this server only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes the idle connections. Calls that are under way go on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StaticToken always gives the same token.
func StaticToken(token string) func() (string, error) {
	return func() (string, error) { return token, nil }
}

// TokenFile reads the token from a file for each attempt, so that it may be
// replaced at any time. Space around it is left out.
func TokenFile(path string) func() (string, error) {
	return func() (string, error) {
		data, err := os.ReadFile(path) //nolint:gosec // the caller's choice
		if err != nil {
			return "", fmt.Errorf("reading the token: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	}
}

// Error is an answer that says why there is no other. Compare it with the Err…
// values by errors.Is.
type Error struct {
	Status    int    // of HTTP
	Field     string // what was wrong, where one thing was
	Reason    string // a word of a fixed list, see docs/http.md
	Message   string
	RequestID string // names the request in the server's log
}

// Error implements error.
func (e *Error) Error() string {
	text := "kvatlas answers " + strconv.Itoa(e.Status)
	for _, part := range []string{e.Reason, e.Field, e.Message} {
		if part != "" {
			text += ": " + part
		}
	}
	return text
}

// What errors.Is finds in an Error.
var (
	ErrUnknownModel     = errors.New("no such model")
	ErrUnknownSelection = errors.New("no such reservation; it was freed, or its lease ended")
	ErrOverloaded       = errors.New("all workers are busy")
	ErrNoWorker         = errors.New("no worker may serve this")
	ErrUnauthorized     = errors.New("the token is missing, unknown, or for less")
)

// Is implements the interface that errors.Is looks for.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrUnknownModel:
		return e.Reason == "unknown_model" || e.Reason == "unknown_group"
	case ErrUnknownSelection:
		return e.Reason == "unknown_selection"
	case ErrOverloaded:
		return e.Reason == "overloaded"
	case ErrNoWorker:
		return e.Reason == "no_worker"
	case ErrUnauthorized:
		return e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden
	}
	return false
}

// request is one call.
type request struct {
	method, path string // the path is escaped
	query        url.Values
	kind         string // of the body
	body         []byte
	// before runs before each repetition and may change the body.
	before func(ctx context.Context, q *request)
}

// answer is what came for it.
type answer struct {
	kind string
	body []byte
}

// do sends the request until it is answered, the attempts are used up or ctx
// ends.
func (c *Client) do(ctx context.Context, q *request) (answer, error) {
	for attempt := 0; ; attempt++ {
		a, wait, err := c.once(ctx, q)
		if err == nil || wait < 0 || attempt >= c.cfg.Retries || ctx.Err() != nil {
			return a, err
		}
		limit := c.cfg.MaxBackoff
		if attempt < 16 { // beyond, the shift would say nothing
			limit = min(limit, c.cfg.Backoff<<attempt)
		}
		timer := time.NewTimer(max(min(wait, c.cfg.MaxBackoff), rand.N(max(limit, 1))))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return a, errors.Join(ctx.Err(), err)
		}
		if q.before != nil {
			q.before(ctx, q)
		}
	}
}

// once sends the request once. After an error, wait is how long the server asks
// to wait before the next attempt, and below 0 if there is to be none.
func (c *Client) once(ctx context.Context, q *request) (a answer, wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	u := *c.base
	u.RawPath, u.Path = "", ""
	address := strings.TrimSuffix(u.String(), "/") + strings.TrimSuffix(c.base.EscapedPath(), "/") + q.path
	if len(q.query) > 0 {
		address += "?" + q.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, q.method, address, bytes.NewReader(q.body))
	if err != nil {
		return a, -1, fmt.Errorf("making the request: %w", err)
	}
	if q.kind != "" {
		r.Header.Set("Content-Type", q.kind)
	}
	if c.cfg.Token != nil {
		token, err := c.cfg.Token()
		if err != nil {
			return a, -1, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return a, 0, fmt.Errorf("asking %s: %w", c.base.Host, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	a.kind = resp.Header.Get("Content-Type")
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, min(c.cfg.MaxAnswer, math.MaxInt64-1)+1)); err != nil {
		return a, 0, fmt.Errorf("reading the answer of %s: %w", c.base.Host, err)
	}
	switch {
	case int64(len(a.body)) > c.cfg.MaxAnswer:
		return a, -1, fmt.Errorf("the answer of %s is larger than %d bytes", c.base.Host, c.cfg.MaxAnswer)
	case resp.StatusCode == http.StatusOK:
		return a, 0, nil
	}
	wait = -1
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		wait = 0
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			wait = time.Duration(min(s, 3600)) * time.Second
		}
	}
	return a, wait, problem(resp, a.body)
}

// problem reads an answer that is not 200.
func problem(resp *http.Response, body []byte) *Error {
	e := &Error{Status: resp.StatusCode, RequestID: resp.Header.Get("X-Request-Id")}
	var text struct{ Error json.RawMessage }
	if json.Unmarshal(body, &text) == nil && len(text.Error) > 0 {
		var p struct{ Field, Reason, Message string }
		if json.Unmarshal(text.Error, &p) == nil {
			e.Field, e.Reason, e.Message = p.Field, p.Reason, p.Message
			return e
		}
		if json.Unmarshal(text.Error, &e.Message) == nil {
			return e
		}
	}
	e.Message = strings.ToValidUTF8(strings.TrimSpace(string(body[:min(len(body), 200)])), "")
	return e
}

// call sends v, if it is not nil, as JSON and reads the answer into out, if that
// is not nil.
func (c *Client) call(ctx context.Context, q request, v, out any) error {
	if v != nil {
		body, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("writing the request: %w", err)
		}
		q.body, q.kind = body, typeJSON
	}
	a, err := c.do(ctx, &q)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(a.body, out); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", c.base.Host, err)
	}
	return nil
}

// Ready returns nil if the program is ready for requests, else an error that
// says why not. It is not repeated.
func (c *Client) Ready(ctx context.Context) error {
	_, _, err := c.once(ctx, &request{method: http.MethodGet, path: "/readyz", query: url.Values{"verbose": {""}}})
	return err
}
