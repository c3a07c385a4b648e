package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/snapshot/dump"
)

// Config says how a peer is asked. URL is needed; zero in any other field means
// the stated default.
type Config struct {
	URL   string                 // of a kvindexer: http://host:port or https://host:port
	Token func() (string, error) // of an operator; nil: none
	TLS   *tls.Config            // for https; nil trusts the system's authorities
	// Stall is how long the peer may say nothing; default 30 s. Wait is how long
	// to wait after a first failure, doubled for each further one; default 250 ms.
	Stall, Wait time.Duration
	// Progress is told how far it is; nil: nobody is.
	Progress *startup.Progress
	Log      *slog.Logger // nil: slog.Default()
}

// Source is a peer.
type Source struct {
	cfg  Config
	base *url.URL
	http *http.Client
}

// New returns a Source. It does not connect yet.
func New(cfg Config) (*Source, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("%q is no URL of a peer such as http://10.0.0.7:8090", conf.HideCredentials(cfg.URL))
	}
	cfg.defaults()
	return &Source{cfg: cfg, base: u, http: &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSClientConfig: cfg.TLS, TLSHandshakeTimeout: 10 * time.Second,
			DisableCompression: true, // it asks for zstd itself
		},
		// The token is for this server only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close closes idle connections. A nil Source is closed.
func (s *Source) Close() {
	if s != nil {
		s.http.CloseIdleConnections()
	}
}

// errAgain is of what may go better the next time.
var errAgain = errors.New("for now")

// maxProblem bounds what is read of a refusal.
const maxProblem = 4 << 10

// part asks for the dump from the loader's cursor on, and reads it.
func (s *Source) part(ctx context.Context, info stream.Info, l *dump.Loader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(s.cfg.Stall, func() { cancel(fmt.Errorf("%w: it says nothing for %v", errAgain, s.cfg.Stall)) })
	defer stalled.Stop()
	sp := info.Space
	q := url.Values{"model": {sp.Model}, "block_size": {strconv.FormatUint(uint64(sp.BlockSize), 10)}, "group": {sp.Group}}
	if c := l.Cursor(); c != "" {
		q.Set("cursor", c)
	}
	u := s.base.JoinPath("v1/dump")
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("asking the peer: %w", err)
	}
	req.Header.Set("Accept-Encoding", "zstd")
	if s.cfg.Token != nil {
		token, err := s.cfg.Token()
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return again(ctx, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	in := io.Reader(&counted{s: s, in: resp.Body, stalled: stalled})
	if resp.Header.Get("Content-Encoding") == "zstd" {
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			return fmt.Errorf("the peer's dump: %w", err)
		}
		defer z.Close()
		in = z
	}
	if err = l.Read(ctx, in); errors.Is(err, dump.ErrTruncated) {
		return again(ctx, err)
	}
	return err
}

// again marks a failure of the connection, with its cause.
func again(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("%w: %w", errAgain, err)
}

// refusal says what the peer answers in the place of a dump.
func refusal(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblem)) // what there is of it
	text := strings.ToValidUTF8(strings.TrimSpace(string(body)), "")
	err := fmt.Errorf("%w: %s: %s", ErrGone, resp.Status, text)
	switch {
	case resp.StatusCode == http.StatusNotFound && (strings.Contains(string(body), `"unknown_model"`) || strings.Contains(string(body), `"unknown_group"`)),
		resp.StatusCode == http.StatusBadRequest && strings.Contains(string(body), `"block_size_mismatch"`):
		return fmt.Errorf("%w: %s", ErrUnknown, text)
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// counted is the body of a dump as it comes.
type counted struct {
	s       *Source
	in      io.Reader
	stalled *time.Timer
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.s.cfg.Progress.Read(uint64(n), 0)
	if n > 0 {
		c.stalled.Reset(c.s.cfg.Stall)
	}
	return n, err
}
