package client

import (
	"context"
	"net/http"
	"net/url"
)

// WorkerSpace is an index space and its workers.
type WorkerSpace struct {
	Model     string   `json:"model"`
	Group     string   `json:"group"`
	BlockSize int      `json:"block_size"`
	Workers   []Worker `json:"workers"`
}

// Worker is a worker that is registered or publishes.
type Worker struct {
	ID      uint64        `json:"worker_id,string"`
	State   string        `json:"state"` // live, suspect, lost, gone, or unregistered
	Drained bool          `json:"drained"`
	Blocks  uint64        `json:"blocks"` // over all ranks and tiers
	Ranks   []WorkerRank  `json:"ranks"`
	Info    *Registration `json:"registration"` // nil: it is not registered
}

// WorkerRank is what a rank holds, in blocks.
type WorkerRank struct {
	DPRank     uint32 `json:"dp_rank"`
	Device     uint64 `json:"device"`
	HostPinned uint64 `json:"host_pinned"`
	Disk       uint64 `json:"disk"`
	External   uint64 `json:"external"`
}

// Registration is how a worker is registered; docs/http.md has all of it.
type Registration struct {
	Name        string   `json:"name"`
	Sources     []string `json:"sources"` // announced, http, static
	Role        string   `json:"role"`
	Transport   string   `json:"transport"`
	Ranks       []uint32 `json:"dp_ranks"`
	TotalBlocks uint64   `json:"total_blocks"` // the device cache of a rank; 0 is unknown
	LeaseAge    float64  `json:"lease_age_seconds"`
	Mismatch    string   `json:"mismatch"` // why its hashes never match
}

// Workers asks kvindexer who there is, in every space, or with a model in its
// spaces only.
func (c *Client) Workers(ctx context.Context, model string) ([]WorkerSpace, error) {
	q := request{method: http.MethodGet, path: "/v1/workers"}
	if model != "" {
		q.query = url.Values{"model": {model}}
	}
	var a struct{ Spaces []WorkerSpace }
	err := c.call(ctx, q, nil, &a)
	return a.Spaces, err
}
