package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Choose asks which worker is to serve a prompt. Model is needed, and TokenIDs
// or BlockHashes.
type Choose struct {
	Model       string   `json:"model_name"`              // any name that the router serves it by
	Group       string   `json:"routing_group,omitempty"` // "" is the default group
	TokenIDs    []uint32 `json:"token_ids,omitempty"`
	BlockHashes []uint64 `json:"block_hashes,omitempty"` // local hashes of the complete blocks
	Tokens      int      `json:"isl_tokens,omitempty"`   // length of the prompt, with BlockHashes
	LoraName    string   `json:"lora_name,omitempty"`
	CacheSalt   string   `json:"cache_salt,omitempty"`
	Phase       string   `json:"phase,omitempty"` // aggregated (if left out), prefill or decode

	OverlapWeight  *float64 `json:"overlap_score_weight,omitempty"` // nil: the router's
	Temperature    *float64 `json:"router_temperature,omitempty"`   // nil: the router's
	Allowed        []uint64 `json:"allowed_worker_ids,omitempty"`
	Excluded       []uint64 `json:"excluded_worker_ids,omitempty"`
	Worker         *uint64  `json:"worker_id,omitempty"` // this one or none
	ExpectedOutput int      `json:"expected_output_tokens,omitempty"`
}

// Selection is the worker that was chosen.
type Selection struct {
	ID        string `json:"selection_id"` // of the reservation; "" if nothing is reserved
	Model     string `json:"model_name"`   // by which its engine knows it, also if it was asked for by another name
	LoraName  string `json:"lora_name"`    // of the LoRA adapter that was asked for, as its engine knows it; "" if none was
	Worker    uint64 `json:"worker_id"`
	DPRank    uint32 `json:"dp_rank"`
	Endpoint  string `json:"endpoint"` // of its engine; "" if unknown
	BlockSize int    `json:"block_size"`
	Overlap   struct {
		Longest int `json:"longest_matched"` // tokens, over all tiers
		Device  int `json:"gpu"`             // tokens
	} `json:"overlap"`
	Unknown       bool `json:"unknown"`                  // nobody knows yet what it holds, and Overlap is none for that
	PrefillTokens int  `json:"effective_prefill_tokens"` // that are to be computed
}

// Select asks kvrouter for a worker and reserves nothing.
func (c *Client) Select(ctx context.Context, q Choose) (*Selection, error) {
	s := new(Selection)
	if err := c.call(ctx, request{method: http.MethodPost, path: "/v1/select"}, q, s); err != nil {
		return nil, err
	}
	return s, nil
}

// SelectAndReserve asks kvrouter for a worker and counts the request there from
// now on, until Free or the end of its lease. Each attempt has an id of its own:
// that of one whose answer did not come is freed, once, before the next, and if
// that fails too it ends with its lease.
func (c *Client) SelectAndReserve(ctx context.Context, q Choose) (*Selection, error) {
	body := func(id string) ([]byte, error) {
		return json.Marshal(struct {
			ID string `json:"selection_id"`
			Choose
		}{id, q})
	}
	id := rand.Text()
	first, err := body(id)
	if err != nil {
		return nil, fmt.Errorf("writing the request: %w", err)
	}
	a, err := c.do(ctx, &request{
		method: http.MethodPost, path: "/v1/select_and_reserve", kind: typeJSON, body: first,
		before: func(ctx context.Context, r *request) {
			_, _, _ = c.once(ctx, &request{method: http.MethodDelete, path: reservation(id)}) // it may not be there
			id = rand.Text()
			if next, err := body(id); err == nil { // as it was the first time
				r.body = next
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s := new(Selection)
	if err := json.Unmarshal(a.body, s); err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", c.base.Host, err)
	}
	return s, nil
}

func reservation(id string) string { return "/v1/reservations/" + url.PathEscape(id) }

// PrefillComplete tells that the prompt of the reservation is computed.
func (c *Client) PrefillComplete(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodPost, path: reservation(id) + "/prefill_complete"}, nil, nil)
}

// Failed tells that the worker of the reservation did not serve the request; after
// several the router leaves it out for a while. With full it says that it has no room,
// for as long as retryAfter, if that is not 0. The reservation stays: Free it.
func (c *Client) Failed(ctx context.Context, id string, full bool, retryAfter time.Duration) error {
	in := map[string]any{"full": full, "retry_after_seconds": retryAfter.Seconds()}
	return c.call(ctx, request{method: http.MethodPost, path: reservation(id) + "/failed"}, in, nil)
}

// Free ends the reservation. It is no error if it has ended already.
func (c *Client) Free(ctx context.Context, id string) error {
	err := c.call(ctx, request{method: http.MethodDelete, path: reservation(id)}, nil, nil)
	if errors.Is(err, ErrUnknownSelection) {
		return nil
	}
	return err
}
