package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// The keys of the bucket, by their first token; docs/stored-format.md has their
// values.
//
//	lease.<space>.<worker>        a worker's announcement; its heartbeats write it again
//	http.<space>.<worker>.<rank>  a registration over HTTP; no lease
//	(each of them, when it ends, is its tombstone for Config.Forget)
//	drain.<worker>                the worker is drained
//	replica.<name>                a replica's beat
const (
	keyLease   = "lease"
	keyHTTP    = "http"
	keyDrain   = "drain"
	keyReplica = "replica"

	keyStatic = "static" // of no key: the list that this process was given
)

func leaseKey(k Key) string {
	return keyLease + "." + stream.Token(k.Space) + "." + strconv.FormatUint(k.Worker, 10)
}

func httpKey(k Key, rank uint32) string {
	return keyHTTP + "." + stream.Token(k.Space) + "." + strconv.FormatUint(k.Worker, 10) + "." + strconv.FormatUint(uint64(rank), 10)
}

func drainKey(worker uint64) string { return keyDrain + "." + strconv.FormatUint(worker, 10) }

func replicaKey(name string) string { return keyReplica + "." + name }

// recordVersion is the format of the values.
const recordVersion = 1

// record is the value of a lease or HTTP key.
type record struct {
	Version int `json:"v"`
	Worker
	// LeaseMS is how long the announcement holds without being written again;
	// 0 at HTTP keys.
	LeaseMS int64 `json:"lease_ms,omitempty"`
	// Announcer names the Announcement, so that two of one worker are noticed.
	Announcer uint64 `json:"announcer,string,omitempty"`
	// Last holds the last event id of each rank.
	Last []position `json:"last,omitempty"`
	// Gone makes the record a tombstone: the registration has ended, and this is
	// what replicas have to know of it that were not there.
	Gone *moment `json:"gone,omitempty"`
	// Former are ranks that the worker had before those of now.
	Former []formerRanks `json:"former,omitempty"`
}

type position struct {
	DPRank uint32 `json:"dp_rank"`
	ID     uint64 `json:"id,string"`
}

func (r *record) positions() []event.Position {
	var list []event.Position
	for _, p := range r.Last {
		list = append(list, event.Position{DPRank: p.DPRank, ID: p.ID})
	}
	return list
}

// drainRecord is the value of a drain key.
type drainRecord struct {
	Version int       `json:"v"`
	Since   time.Time `json:"since"`
	By      string    `json:"by,omitempty"`
}

// beatRecord is the value of a replica's key.
type beatRecord struct {
	Version int    `json:"v"`
	Nonce   uint64 `json:"nonce,string"` // of this run of the replica
}

// Bounds on leases. A record that says otherwise is corrupt.
const (
	minLease = 100 * time.Millisecond
	maxLease = time.Hour
)

// corruptError is why a value is ignored; its reason is a label of metrics.
type corruptError struct {
	reason string
	err    error
}

func (e *corruptError) Error() string { return e.reason + ": " + e.err.Error() }
func (e *corruptError) Unwrap() error { return e.err }

func corrupt(reason, format string, args ...any) error {
	return &corruptError{reason, fmt.Errorf(format, args...)}
}

// parseWorker reads the value of a lease or HTTP key.
func parseWorker(key string, value []byte) (*record, error) {
	var r record
	if err := parseJSON(value, &r); err != nil {
		return nil, err
	}
	if r.Version != recordVersion {
		return nil, corrupt("version", "format %d, this program knows %d", r.Version, recordVersion)
	}
	if err := r.normalise(); err != nil {
		return nil, corrupt("worker", "%w", err)
	}
	lease := time.Duration(r.LeaseMS) * time.Millisecond
	switch {
	case strings.HasPrefix(key, keyLease+"."):
		if key != leaseKey(r.Key()) {
			return nil, corrupt("key", "it describes worker %d of model %q", r.ID, r.Model)
		}
		if r.Gone == nil && (r.LeaseMS > maxLease.Milliseconds() || lease < minLease) {
			return nil, corrupt("lease", "a lease of %d ms", r.LeaseMS)
		}
	case len(r.Ranks) != 1 || key != httpKey(r.Key(), r.Ranks[0]):
		return nil, corrupt("key", "it describes ranks %v of worker %d of model %q", r.Ranks, r.ID, r.Model)
	}
	return &r, nil
}

func parseJSON(value []byte, v any) error {
	if err := json.Unmarshal(value, v); err != nil {
		return corrupt("json", "%w", err)
	}
	return nil
}

// splitKey returns a key's kind and what follows it.
func splitKey(key string) (kind, rest string) {
	kind, rest, _ = strings.Cut(key, ".")
	return kind, rest
}

// parseDrain reads a drain key and its value.
func parseDrain(key string, value []byte) (worker uint64, d drainRecord, err error) {
	if worker, err = drainWorker(key); err != nil {
		return 0, d, err
	}
	if err := parseJSON(value, &d); err != nil {
		return 0, d, err
	}
	if d.Version != recordVersion {
		return 0, d, corrupt("version", "format %d, this program knows %d", d.Version, recordVersion)
	}
	return worker, d, nil
}

func drainWorker(key string) (uint64, error) {
	_, rest := splitKey(key)
	worker, err := strconv.ParseUint(rest, 10, 64)
	if err != nil || drainKey(worker) != key {
		return 0, corrupt("key", "%q names no worker", key)
	}
	return worker, nil
}

// reasonOf returns the label of an error of the parse functions.
func reasonOf(err error) string {
	var c *corruptError
	if errors.As(err, &c) {
		return c.reason
	}
	return "other"
}
