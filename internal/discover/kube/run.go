package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/internal/pace"
)

// List says what is followed, and how.
type List struct {
	Path  string     // of the API: /api/v1/namespaces/NAMESPACE/pods
	Query url.Values // its selectors
	Most  int        // objects of the list; more are an error
	// Watch is how long a watch lasts before the next one takes over.
	Watch time.Duration
	// Least and Longest are how long is waited after what was in vain.
	Least, Longest time.Duration
	// Sink is told of each change, and holds up the next meanwhile. An error of its
	// own ends Follow.
	Sink func(context.Context, Change) error
	// Contact is told how each request ended; nil if well. A watch that the server
	// ends in good order is well.
	Contact func(error)
}

// pageSize is how many objects are asked for at once.
const pageSize = 200

// maxPage and maxEvent bound the bytes of an answer: an object of etcd has 1.5 MiB
// at most, and a page has mostly small ones. Reading a page takes some times its bytes, and
// the chart gives kvpods 256 MiB.
const (
	maxPage  = 32 << 20
	maxEvent = 8 << 20
)

// Follow follows the list until ctx ends.
func (c *Client) Follow(ctx context.Context, l List) error {
	m := machine{most: l.Most}
	var wait pace.Pace
	seed := rand.Uint64()
	var listed time.Time // when the last list was whole
	for ctx.Err() == nil {
		begun, was := time.Now(), m.state
		followed := was == watching
		heard, err := c.step(ctx, &m, &l)
		var told *sinkError
		if errors.As(err, &told) {
			return told.err
		}
		if ctx.Err() != nil {
			break
		}
		l.Contact(err)
		if was == listing && m.state == watching {
			listed = time.Now()
		}
		// The server is there, and has forgotten what was missed. Where that follows on each list,
		// or comes of one, it is waited.
		if errors.Is(err, errTooOld) && was != listing && begun.Sub(listed) > l.Longest {
			continue
		}
		// A list alone is no progress: where each watch after it fails, lists follow each
		// other ever more slowly. Nor is a watch that the server ends as soon as it begins.
		lasted := err == nil && time.Since(begun) > l.Least
		if followed && (heard || lasted) {
			wait.Progress()
		}
		if err == nil && !followed || lasted {
			continue
		}
		timer := time.NewTimer(wait.Later(begun, time.Now(), l.Least, l.Longest, seed))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return ctx.Err()
}

// sinkError is an error of who is told.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }

// step makes one request; heard reports whether it brought something.
func (c *Client) step(ctx context.Context, m *machine, l *List) (heard bool, err error) {
	query := url.Values{}
	for k, v := range l.Query {
		query[k] = v
	}
	if m.state == watching {
		query.Set("watch", "1")
		query.Set("allowWatchBookmarks", "true")
		query.Set("resourceVersion", m.version)
		query.Set("timeoutSeconds", strconv.Itoa(max(1, int(l.Watch/time.Second))))
		return c.watch(ctx, m, l, query)
	}
	query.Set("limit", strconv.Itoa(pageSize))
	if m.state == checking {
		query.Set("limit", "1")
	}
	if m.page != "" {
		query.Set("continue", m.page)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	body, err := c.open(ctx, m, l.Path, query)
	if err != nil {
		return false, err
	}
	defer body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(body, maxPage+1))
	if err == nil && len(text) > maxPage {
		err = fmt.Errorf("a page of %s is larger than %d bytes", l.Path, maxPage)
	}
	if err != nil {
		m.onBroken()
		return false, err
	}
	if m.state == checking {
		if err := m.onCheck(text); err != nil {
			return false, fmt.Errorf("list of %s: %w", l.Path, err)
		}
		return true, nil
	}
	change, whole, err := m.onPage(text)
	if err != nil {
		return false, fmt.Errorf("list of %s: %w", l.Path, err)
	}
	if whole {
		if err := l.Sink(ctx, change); err != nil {
			return true, &sinkError{err}
		}
	}
	return true, nil
}

// open makes the request, and tells the machine if it came to nothing.
func (c *Client) open(ctx context.Context, m *machine, path string, query url.Values) (io.ReadCloser, error) {
	body, err := c.get(ctx, path, query)
	var no *StatusError
	switch {
	case errors.As(err, &no):
		return nil, fmt.Errorf("%s: %w", path, m.onStatus(no.Code, no.Message))
	case err != nil:
		m.onBroken()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return body, nil
}

// watch follows changes until the server ends it.
func (c *Client) watch(ctx context.Context, m *machine, l *List, query url.Values) (heard bool, err error) {
	watch, cancel := context.WithTimeout(ctx, l.Watch+30*time.Second) // the server ends it before
	defer cancel()
	body, err := c.open(watch, m, l.Path, query)
	if err != nil {
		return false, err
	}
	defer body.Close() //nolint:errcheck // only read
	l.Contact(nil)
	from := &bounded{r: body}
	events := json.NewDecoder(from)
	for {
		from.left = maxEvent
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			if !heard {
				m.onSilence()
			}
			return heard, nil
		} else if err != nil {
			m.onBroken()
			return heard, fmt.Errorf("watch of %s: %w", l.Path, err)
		}
		change, told, err := m.onEvent(&e)
		if err != nil {
			return heard, fmt.Errorf("watch of %s: %w", l.Path, err)
		}
		heard = true
		if told {
			if err := l.Sink(ctx, change); err != nil {
				return true, &sinkError{err}
			}
		}
	}
}

var errLarge = fmt.Errorf("an object is larger than %d bytes", maxEvent)

// bounded ends with an error once left bytes were read.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLarge
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
