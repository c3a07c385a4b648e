package client

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// WorkerSpace is an index space and its workers.
type WorkerSpace struct {
	Model     string   `json:"model"`
	Group     string   `json:"group"`
	BlockSize int      `json:"block_size"`
	Pools     []Pool   `json:"pools,omitempty"`
	Workers   []Worker `json:"workers"`
}

// Pool is a store that workers share.
type Pool struct {
	Name    string `json:"pool"`
	Blocks  uint64 `json:"blocks"`
	Workers int    `json:"workers"` // that name it
}

// Worker is a worker that is registered or publishes.
type Worker struct {
	ID      uint64 `json:"worker_id,string"`
	State   string `json:"state"` // live, suspect, lost, gone, or unregistered
	Drained bool   `json:"drained"`
	Blocks  uint64 `json:"blocks"` // over all ranks and tiers
	// Conflict says that two processes publish as it; "" if not.
	Conflict string        `json:"conflict,omitempty"`
	Warnings []Warning     `json:"warnings,omitempty"`
	Ranks    []WorkerRank  `json:"ranks"`
	Info     *Registration `json:"registration,omitempty"` // nil: it is not registered
}

// Warning is what does not fit together in how a worker is registered and what its publisher
// has seen of its engine.
type Warning struct {
	Check string `json:"check"`
	Level string `json:"level"` // warning, or fault
	Found string `json:"found"`
	Do    string `json:"do,omitempty"`
}

// WorkerRank is what a rank holds, in blocks.
type WorkerRank struct {
	DPRank     uint32  `json:"dp_rank"`
	Device     uint64  `json:"device"`
	HostPinned uint64  `json:"host_pinned"`
	Disk       uint64  `json:"disk"`
	External   uint64  `json:"external"`
	Inferred   uint64  `json:"inferred,omitempty"` // of those on the device
	Stream     *Stream `json:"stream,omitempty"`   // of its events
}

// Stream is how the reading of a rank's events stands.
type Stream struct {
	State      string            `json:"state"`           // following, recovering, incomplete, truncated, contested or departed
	Stale      bool              `json:"stale,omitempty"` // something is missing that its publisher may have
	LastID     uint64            `json:"last_event_id"`
	Lag        uint64            `json:"lag_messages"`
	LagSeconds float64           `json:"lag_seconds"`
	AsOf       *time.Time        `json:"as_of,omitempty"` // when NATS last told how its stream is; nil: it has none
	LastError  string            `json:"last_error,omitempty"`
	LastSeen   *time.Time        `json:"last_seen,omitempty"`
	AskNext    *time.Time        `json:"ask_next,omitempty"` // its publisher is not asked for what is missing before
	Counts     map[string]uint64 `json:"counts,omitempty"`   // since the process started, by name
}

// Registration is how a worker is registered.
type Registration struct {
	Name         string     `json:"name,omitempty"`
	Sources      []string   `json:"sources"` // announced, http, static
	Role         string     `json:"role"`
	Transport    string     `json:"transport"`
	Ranks        []uint32   `json:"dp_ranks"`
	Tiers        []string   `json:"tiers,omitempty"`
	Pools        []string   `json:"pools,omitempty"`        // that it reads from
	TotalBlocks  uint64     `json:"total_blocks,omitempty"` // the device cache of a rank; 0 is unknown
	HashScheme   string     `json:"hash_scheme,omitempty"`
	EngineScheme string     `json:"engine_scheme,omitempty"`
	Incarnation  string     `json:"incarnation,omitempty"`
	LeaseSeconds float64    `json:"lease_seconds,omitempty"`
	LeaseAge     *float64   `json:"lease_age_seconds,omitempty"` // since it was heard last
	Mismatch     string     `json:"mismatch,omitempty"`          // why its hashes never match
	Conflict     string     `json:"conflict,omitempty"`
	LeftAt       *time.Time `json:"left_at,omitempty"`
	LeftBy       string     `json:"left_by,omitempty"`
	DrainedBy    string     `json:"drained_by,omitempty"`
	DrainedSince *time.Time `json:"drained_since,omitempty"`
	// Listeners are the readers of its ranks' sockets, where it has such.
	Listeners map[uint32]Listener `json:"listeners,omitempty"`
}

// Listener is the reader of a rank's socket.
type Listener struct {
	Endpoint  string `json:"endpoint"`
	Status    string `json:"status"` // pending, active, paused or failed
	LastError string `json:"last_error,omitempty"`
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
