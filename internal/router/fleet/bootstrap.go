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

// connectors are the names of an engine's ranks at its bootstrap server, of one life.
type connectors struct {
	life uint64
	ids  map[uint32]string
}

// Bounds on asking a bootstrap server.
const (
	maxConnectors = 1 << 20 // bytes
	connectorWait = 2 * time.Second
)

var errNoRank = errors.New("its bootstrap server does not know the rank yet")

// BootstrapURL is where the engine's bootstrap server is, as decode engines are told.
func (e *Engine) BootstrapURL() string { return "http://" + e.Bootstrap }

// ConnectorID returns the name under which decode engines find a rank of the engine at
// its bootstrap server (vLLM's MooncakeConnector). It is asked for once in a life of the engine.
func (e *Engine) ConnectorID(ctx context.Context, client http.RoundTripper, rank uint32) (string, error) {
	life := e.life.Load()
	if c := e.connectors.Load(); c != nil && c.life == life && c.ids[rank] != "" {
		return c.ids[rank], nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectorWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.BootstrapURL()+"/query", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.RoundTrip(req)
	if err != nil {
		return "", fmt.Errorf("its bootstrap server: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxConnectors))
	var list map[uint32]struct {
		Engine string `json:"engine_id"`
	}
	if err = errors.Join(err, resp.Body.Close()); err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("its bootstrap server at %s answers %d, and not with its engines: %w", e.Bootstrap, resp.StatusCode, err)
	}
	c := &connectors{life, make(map[uint32]string, len(list))}
	for r, entry := range list {
		c.ids[r] = entry.Engine
	}
	e.connectors.Store(c)
	if c.ids[rank] == "" {
		return "", errNoRank
	}
	return c.ids[rank], nil
}

// ForgetConnectors has the names asked for again: they may be of an engine that has
// restarted without registering anew.
func (e *Engine) ForgetConnectors() { e.connectors.Store(nil) }
