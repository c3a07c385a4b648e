package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
)

// ErrRegisteredOtherwise says that a worker of the name is registered as something else:
// unregister that first.
var ErrRegisteredOtherwise = errors.New("a worker of that name is registered otherwise")

// Register registers a worker, given as in a list of workers (docs/registry.md). The same
// once more does nothing.
func (c *Client) Register(ctx context.Context, worker json.RawMessage) error {
	err := c.call(ctx, request{method: http.MethodPost, path: "/register"}, worker, nil)
	var no *Error
	if errors.As(err, &no) {
		switch no.Status {
		case http.StatusCreated:
			return nil
		case http.StatusConflict:
			return errors.Join(ErrRegisteredOtherwise, err)
		}
	}
	return err
}

// Unregister takes a worker's registration back. One that is not registered is no error.
func (c *Client) Unregister(ctx context.Context, name, model, group string, blockSize uint32) error {
	err := c.call(ctx, request{method: http.MethodPost, path: "/unregister"}, map[string]any{
		"worker_id": name, "model": model, "group": group, "block_size": blockSize,
	}, nil)
	var no *Error
	if errors.As(err, &no) && no.Status == http.StatusNotFound {
		return nil
	}
	return err
}
