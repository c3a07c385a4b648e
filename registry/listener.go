package registry

import (
	"errors"
	"fmt"
	"slices"
)

// Listener is the state of what reads one rank's ZMQ socket on this replica.
type Listener struct {
	Endpoint string
	Status   string // pending, active, paused or failed
	Error    string // why it is not as it should be; "" if it is
}

// The states of a listener.
const (
	ListenerPending = "pending" // not connected yet
	ListenerActive  = "active"
	ListenerPaused  = "paused"
	ListenerFailed  = "failed"
)

// ErrUnknownWorker is wrapped by errors about a worker that is not registered.
var ErrUnknownWorker = errors.New("no such worker is registered")

// SetListener notes the state of what reads a rank's socket, and why it is not as it
// should be, nil if it is. Until it is called a listener is pending.
func (r *Registry) SetListener(k Key, rank uint32, status string, cause error) error {
	if !slices.Contains([]string{ListenerPending, ListenerActive, ListenerPaused, ListenerFailed}, status) {
		return fmt.Errorf("registry: %q is no state of a listener", status)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.mu.ledger.members[k]
	if m == nil {
		return fmt.Errorf("registry: worker %d of model %q: %w", k.Worker, k.Space.Model, ErrUnknownWorker)
	}
	if m.listeners == nil {
		m.listeners = make(map[uint32]Listener)
	}
	l := Listener{Status: status}
	if cause != nil {
		l.Error = cause.Error()
	}
	m.listeners[rank] = l
	return nil
}

// listenersOf returns the state of every rank that has a socket.
func (m *member) listenersOf() map[uint32]Listener {
	if len(m.worker.Endpoints.Events) == 0 {
		return nil
	}
	all := make(map[uint32]Listener, len(m.worker.Endpoints.Events))
	for rank, endpoint := range m.worker.Endpoints.Events {
		l := m.listeners[rank]
		if l.Status == "" {
			l.Status = ListenerPending
		}
		l.Endpoint = endpoint
		all[rank] = l
	}
	return all
}
