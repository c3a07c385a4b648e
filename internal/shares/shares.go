package shares

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// Header is the header by which a share says which one it is: a part of the fleet must
// not be taken for another one, or for all of it.
const Header = "Kvatlas-Share"

// Shares asks the indexers of all shares. Its methods are safe for concurrent use.
type Shares struct {
	cfg    Config
	log    *slog.Logger
	client *fasthttp.Client
	list   []*share
	took   *metrics.PrometheusHistogram
	token  atomic.Pointer[string] // nil: none

	known  atomic.Pointer[known]
	cancel context.CancelFunc
	done   chan struct{}
}

// share is one of them.
type share struct {
	part stream.Share
	base string
	// slow is set while its last answer did not come in time: only who sets probed waits
	// for the next one.
	slow, probed atomic.Bool
	missing      map[Reason]*metrics.Counter
}

// Reason is why a share is missing, in one word.
type Reason string

// The reasons.
const (
	Timeout     Reason = "timeout"     // no answer in time
	Skipped     Reason = "skipped"     // the same of late, and another request waits for it
	Busy        Reason = "busy"        // more requests are under way than may be
	Unreachable Reason = "unreachable" // no connection, or none that lasted
	Status      Reason = "status"      // it answers that it does not, as while it catches up
	Other       Reason = "other_share" // it is not the share that was asked
	Malformed   Reason = "malformed"   // its answer cannot be read
	Refused     Reason = "refused"     // it refuses what others take
)

const (
	// maxTries bounds how often a share is asked at once: a share that was started again
	// has closed the connections that are kept to it.
	maxTries = 16
	// maxAnswer bounds the answer of one share, in bytes.
	maxAnswer = 256 << 20
)

const (
	familyMissing = "kvatlas_shares_missing_total"
	helpMissing   = "Requests that a share of the fleet (--shares) did not answer in time, or not as the share that was asked, by share and reason."
)

// dialWait is how long a connection may take to be made.
const dialWait = 3 * time.Second

// New returns a Shares that has asked nobody yet; nil if there are no URLs. A program
// without shares exposes the metrics, too.
func New(cfg Config, m *obs.Metrics, log *slog.Logger) (*Shares, error) {
	s := &Shares{log: log}
	s.known.Store(new(known))
	m.Help(familyMissing, helpMissing)
	m.Gauge("kvatlas_shares_away", "Shares of the fleet (--shares) that do not answer when they are asked what their ranks hold.",
		func() float64 { return float64(len(s.known.Load().away)) })
	s.took = m.Histogram("kvatlas_shares_duration_seconds", "Time in which all shares (--shares) were asked and answered, or did not in time, in seconds.", obs.LatencyBuckets())
	if len(cfg.URLs) == 0 {
		return nil, nil
	}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	settings, err := cfg.Dial.Open(log, "shares")
	if err != nil {
		return nil, err
	}
	s.cfg = cfg
	s.client = &fasthttp.Client{
		Name: "kvatlas", MaxResponseBodySize: maxAnswer, NoDefaultUserAgentHeader: true, MaxConnsPerHost: cfg.Inflight,
		MaxIdemponentCallAttempts: maxTries,
		RetryIfErr:                func(*fasthttp.Request, int, error) (bool, bool) { return false, true }, // it only asks
	}
	if dial := secure.Dialer((&net.Dialer{}).DialContext).TLS(settings); dial != nil {
		s.client.ConfigureClient = func(c *fasthttp.HostClient) error {
			if c.IsTLS {
				c.Dial = func(address string) (net.Conn, error) {
					ctx, cancel := context.WithTimeout(context.Background(), dialWait)
					defer cancel()
					return dial(ctx, "tcp", address)
				}
			}
			return nil
		}
	}
	for i, base := range cfg.URLs {
		one := &share{part: stream.Share{Index: i, Of: len(cfg.URLs)}, base: strings.TrimSuffix(base, "/"), missing: make(map[Reason]*metrics.Counter)}
		for _, why := range []Reason{Timeout, Skipped, Busy, Unreachable, Status, Other, Malformed, Refused} {
			one.missing[why] = m.Counter(familyMissing, helpMissing, "share", one.part.String(), "reason", string(why))
		}
		s.list = append(s.list, one)
	}
	return s, nil
}

// Reply is what one share says.
type Reply struct {
	Share  stream.Share
	Status int
	Kind   string // of the body
	Body   []byte
	Err    error // why there is no answer: the share is missing
	share  *share
}

// Miss counts the share as missing: its answer is none, for a reason that only who
// asked can tell.
func (r *Reply) Miss(why Reason, err error) {
	r.share.missing[why].Inc()
	r.Err = err
}

// Nobody reports whether the share says that nobody of it has published such blocks.
func (r *Reply) Nobody() bool {
	var refusal struct{ Error struct{ Reason string } }
	if r.Err != nil || r.Status == fasthttp.StatusOK || json.Unmarshal(r.Body, &refusal) != nil {
		return false
	}
	return slices.Contains([]string{edge.UnknownModel, edge.UnknownGroup, edge.BlockSize}, refusal.Error.Reason)
}

// Ask asks all shares at once, and returns what each says when all have answered or
// Config.Wait is over. prepare fills in a request, but for its address, and read is
// called with each answer of status 200: both by several goroutines at once.
func (s *Shares) Ask(ctx context.Context, uri string, prepare func(req *fasthttp.Request), read func(i int, r *Reply) error) []Reply {
	begun := time.Now()
	deadline := begun.Add(s.cfg.Wait)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	replies := make([]Reply, len(s.list))
	var asking sync.WaitGroup
	for i, one := range s.list {
		asking.Go(func() {
			r := &replies[i]
			r.Share, r.share = one.part, one
			s.ask(r, uri, prepare, deadline, deadline.Sub(begun) < s.cfg.Wait)
			if r.Err == nil && r.Status == fasthttp.StatusOK && read != nil {
				if err := read(i, r); err != nil {
					r.Miss(Malformed, fmt.Errorf("its answer is none to such a question: %w", err))
				}
			}
		})
	}
	asking.Wait()
	s.took.Update(time.Since(begun).Seconds())
	return replies
}

func (s *Shares) ask(r *Reply, uri string, prepare func(req *fasthttp.Request), deadline time.Time, hurried bool) {
	one := r.share
	if one.slow.Load() {
		if !one.probed.CompareAndSwap(false, true) {
			r.Miss(Skipped, errors.New("it did not answer in time, and another request waits for it"))
			return
		}
		defer one.probed.Store(false)
	}
	req, answer := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(answer)
	prepare(req)
	req.SetRequestURI(one.base + uri)
	err := s.client.DoDeadline(req, answer, deadline)
	if late := reasonOf(err) == Timeout; !late || !hurried { // it had as long as a share has
		one.slow.Store(late)
	}
	status, part := answer.StatusCode(), string(answer.Header.Peek(Header))
	switch {
	case err != nil:
		r.Miss(reasonOf(err), err)
	case part != one.part.String():
		r.Miss(Other, fmt.Errorf("status %d of what is share %q and not %s: give --shares in the order of --share", status, part, one.part))
	case status >= fasthttp.StatusInternalServerError || status == fasthttp.StatusTooManyRequests || status < fasthttp.StatusOK:
		r.Miss(Status, fmt.Errorf("it answers %d", status))
	default:
		r.Status, r.Kind, r.Body = status, string(answer.Header.ContentType()), slices.Clone(answer.Body())
	}
}

// reasonOf says why there was no answer.
func reasonOf(err error) Reason {
	var timeout net.Error
	switch {
	case err == nil:
		return ""
	case errors.Is(err, fasthttp.ErrNoFreeConns):
		return Busy
	case errors.Is(err, fasthttp.ErrTimeout), errors.Is(err, fasthttp.ErrDialTimeout), errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	}
	return Unreachable
}
