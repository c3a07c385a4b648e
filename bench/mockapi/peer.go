package mockapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// remoteSource is vLLM's kv_transfer_params.remote_kv_source: who has a prefix of the prompt, by
// its side channel. An engine asks it how much it has, and fetches that.
type remoteSource struct {
	Request string `json:"kv_request_id"`
	Host    string `json:"remote_host"`
	Port    int    `json:"remote_port"`
}

// peerPath is where an engine gives away what it has cached: its side channel.
const peerPath = "/mock/blocks"

// servePeer answers with how many of the leading blocks of a prompt, by their local hashes, the
// engine has, after as long as its link takes to give them. The link is one for all who fetch.
func (s *Server) servePeer(w http.ResponseWriter, r *http.Request) {
	var local []uint64
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<24)).Decode(&local); err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	has := make(chan int, 1)
	if s.ranks[0].do(func() { has <- s.ranks[0].engine.Leading(local) }) != nil {
		return
	}
	n := <-has
	select {
	case s.link <- struct{}{}:
		defer func() { <-s.link }()
	case <-r.Context().Done():
		return
	}
	if s.cfg.Link != nil && n > 0 {
		timer := time.NewTimer(s.cfg.Link(n * s.cfg.Engine.BlockSize))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.stop:
			return
		}
	}
	s.Given.Add(int64(n))
	_, _ = fmt.Fprint(w, n) // the other engine may be gone
}

// fetchBlocks returns how many of a prompt's leading blocks come from the engine that the request
// names: none where there is none, or it has none; then they are computed.
func (s *Server) fetchBlocks(ctx context.Context, q *request, local []uint64) int {
	if !s.cfg.Peer || q.Transfer == nil || q.Transfer.Source == nil || len(local) == 0 {
		return 0
	}
	from := q.Transfer.Source
	n, err := askPeer(ctx, "http://"+net.JoinHostPort(from.Host, strconv.Itoa(from.Port))+peerPath, local)
	if err != nil || n == 0 {
		s.Lost.Add(1)
		return 0
	}
	s.Fetched.Add(int64(n))
	return n
}

func askPeer(ctx context.Context, url string, local []uint64) (n int, err error) {
	body, err := json.Marshal(local)
	if err != nil {
		return 0, err
	}
	data, err := askEngine(ctx, http.MethodPost, url, body)
	if err != nil {
		return 0, err
	}
	if n, err = strconv.Atoi(data); err != nil || n < 0 || n > len(local) {
		return 0, errors.Join(fmt.Errorf("asked for %d blocks and got %q", len(local), data), err)
	}
	return n, nil
}
