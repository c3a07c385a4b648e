package event

import (
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// pending is what a decoded RouterEvent says besides its Event, whose hashes
// get their slices when the arenas no longer move.
type pending struct {
	worker             uint64
	engineAt, engineTo int // hashes[engineAt:engineTo]
	localAt, localTo   int // locals[localAt:localTo]
	filtered           int // block operations left out
}

// JSON and msgpack have a decoder each on purpose. One over both, with an interface
// of what they can read and a loop over blocks for each, took 100 lines less, and for
// events of one block, which engines publish most, 23 % (JSON) to 51 % (msgpack)
// longer: BenchmarkRouterEventDecode, /1. Type parameters call through a dictionary,
// which is the same.

// routerEvent is one RouterEvent while its fields are read, in any order.
type routerEvent struct {
	pending
	ev      Event
	foreign bool // not the worker's own residency
	seen    routerField
}

// routerField is a set of the fields without which a RouterEvent is none.
type routerField uint8

const (
	fieldWorker routerField = 1 << iota
	fieldEvent
	fieldID
	fieldData
	fieldAll = fieldWorker | fieldEvent | fieldID | fieldData
)

// missing names the first field that is not there.
func (f routerField) missing() string {
	switch {
	case f&fieldWorker == 0:
		return "worker_id"
	case f&fieldEvent == 0:
		return "event"
	case f&fieldID == 0:
		return "event_id"
	}
	return "data"
}

var (
	errMissingBlock  = fmt.Errorf("%w: a block without block_hash or tokens_hash", ErrMalformed)
	errMissingHashes = fmt.Errorf("%w: stored without blocks or removed without block_hashes", ErrMalformed)
)

// eventField, storedField and blockField return the positions of named fields; -1 is
// none that matters.
func eventField(name []byte) int {
	switch string(name) {
	case "event_id":
		return 0
	case "data":
		return 1
	case "dp_rank":
		return 2
	}
	return -1
}

func storedField(name []byte) int {
	switch string(name) {
	case "parent_hash":
		return 0
	case "blocks":
		return 2
	}
	return -1
}

func blockField(name []byte) int {
	switch string(name) {
	case "block_hash":
		return 0
	case "tokens_hash":
		return 1
	}
	return -1
}

func (re *routerEvent) setTier(name []byte) error {
	var ok bool
	if re.ev.Tier, ok = ParseTier(name); !ok {
		return fmt.Errorf("%w: storage tier %q", ErrMalformed, name)
	}
	return nil
}

// residencyIsForeign tells whether blocks of the residency domain belong to
// something else than the worker. Old events have no domain.
func residencyIsForeign(domain []byte) bool {
	return len(domain) > 0 && string(domain) != "worker"
}

// begin returns an empty RouterEvent whose hashes will lie at the arenas' ends.
func (d *Decoder) begin() (re routerEvent) {
	re.engineAt, re.localAt = len(d.hashes), len(d.locals)
	return re
}

// restart forgets what an earlier data field of the same RouterEvent said: of
// repeated keys the last one counts.
func (d *Decoder) restart(re *routerEvent) {
	d.hashes, d.locals = d.hashes[:re.engineAt], d.locals[:re.localAt]
	re.ev.HasParent, re.ev.Parent = false, 0
}

// add takes the RouterEvent in, complete. One of another domain is kept as an event that
// changes nothing: without its id its stream would have a gap.
func (d *Decoder) add(re *routerEvent) error {
	if re.seen != fieldAll {
		return fmt.Errorf("%w: RouterEvent without %s", ErrMalformed, re.seen.missing())
	}
	if re.ev.DPRank == PoolRank {
		return errPoolRank
	}
	switch {
	case re.foreign: // keeps its event id and changes nothing
		re.filtered = max(1, len(d.hashes)-re.engineAt)
		d.hashes, d.locals = d.hashes[:re.engineAt], d.locals[:re.localAt]
		re.ev = Event{Kind: Removed, DPRank: re.ev.DPRank, ID: re.ev.ID}
	case re.ev.Kind == Cleared:
		re.ev.Tier, re.ev.AllTiers = Device, true // Dynamo's indexers forget the whole rank
	}
	re.engineTo, re.localTo = len(d.hashes), len(d.locals)
	d.events = append(d.events, re.ev)
	d.pending = append(d.pending, re.pending)
	return nil
}

// routerBatches gives the events their hashes and groups them by worker. Only now: the
// arenas that the hashes lie in may have moved while the message was read. Neighbours of
// one worker are a batch; the order of the message stays.
func (d *Decoder) routerBatches(published int64) []Batch {
	start := 0
	for i := range d.events {
		p, ev := &d.pending[i], &d.events[i]
		if i == 0 || p.worker != d.pending[i-1].worker {
			d.batches = append(d.batches, Batch{Worker: p.worker, Published: published})
			start = i
		}
		if p.engineTo > p.engineAt {
			ev.Engine = d.hashes[p.engineAt:p.engineTo:p.engineTo]
		}
		if p.localTo > p.localAt {
			ev.Local = d.locals[p.localAt:p.localTo:p.localTo]
		}
		b := &d.batches[len(d.batches)-1]
		b.Filtered += p.filtered
		b.Events = d.events[start : i+1 : i+1]
	}
	return d.batches
}

// routerError names the format and the reason of a reader's error.
func routerError(format string, err error) error {
	reason := ErrMalformed
	if errors.Is(err, msgpack.ErrTruncated) || errors.Is(err, jsonscan.ErrTruncated) {
		reason = ErrTruncated
	}
	if errors.Is(err, reason) {
		return fmt.Errorf("RouterEvent as %s: %w", format, err)
	}
	return fmt.Errorf("RouterEvent as %s: %w: %w", format, reason, err)
}
