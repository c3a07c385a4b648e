package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// connectors are the names of an engine's ranks at its bootstrap server, of one life, or why
// they are not known.
type connectors struct {
	life  uint64
	ids   map[uint32]string
	err   error
	until time.Time // if err is set: until then it is not asked again
}

// Bounds on asking a bootstrap server.
const (
	maxConnectors = 1 << 20 // bytes of its answer
	maxConnector  = 1 << 10 // bytes of a name, which each request has; vLLM's are 40
	connectorWait = 2 * time.Second
	// connectorRest is how long it is not asked again after it was in vain, so that not
	// each request waits for one that hangs.
	connectorRest = 5 * time.Second
)

var errNoEngines = errors.New("it does not list its engines")

var errNoRank = errors.New("its bootstrap server does not know the rank yet")

// BootstrapURL is where the engine's bootstrap server is, as decode engines are told.
func (e *Engine) BootstrapURL() string { return "http://" + e.Bootstrap }

// ConnectorID returns the name under which decode engines find a rank of the engine at
// its bootstrap server (vLLM's MooncakeConnector). It is asked for once in a life of the engine.
func (e *Engine) ConnectorID(ctx context.Context, client http.RoundTripper, rank uint32) (string, error) {
	life := e.life.Load()
	if c := e.connectors.Load(); c != nil && c.life == life {
		if c.err != nil && time.Now().Before(c.until) {
			return "", c.err
		}
		if c.ids[rank] != "" {
			return c.ids[rank], nil
		}
	}
	ids, err := e.askConnectors(ctx, client)
	if err == nil && ids[rank] == "" {
		err = errNoRank
	}
	if err != nil {
		if ctx.Err() == nil { // else it had no time
			e.connectors.Store(&connectors{life: life, err: err, until: time.Now().Add(connectorRest)})
		}
		return "", err
	}
	e.connectors.Store(&connectors{life: life, ids: ids})
	return ids[rank], nil
}

func (e *Engine) askConnectors(ctx context.Context, client http.RoundTripper) (map[uint32]string, error) {
	ctx, cancel := context.WithTimeout(ctx, connectorWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.BootstrapURL()+"/query", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("its bootstrap server: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxConnectors))
	var list map[uint32]struct {
		Engine string `json:"engine_id"`
	}
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = errNoEngines
	}
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("its bootstrap server at %s answers %d: %w", e.Bootstrap, resp.StatusCode, err)
	}
	ids := make(map[uint32]string, len(list))
	for r, entry := range list {
		if len(entry.Engine) <= maxConnector {
			ids[r] = entry.Engine
		}
	}
	return ids, nil
}

// ForgetConnectors has the names asked for again: they may be of an engine that has
// restarted without registering anew.
func (e *Engine) ForgetConnectors() { e.connectors.Store(nil) }
