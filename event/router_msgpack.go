package event

import (
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// Dynamo's structs come as msgpack in two forms, fields by name and fields by position, and
// its publishers mix them. Each reader below takes both: a named field is turned into its
// position first. Fields that are not known are stepped over, in both forms, as newer
// versions append some; a value of the wrong kind fails the message, and the first
// error of the reader ends every loop.

// DecodeRouterMsgpack decodes one RouterEvent or an array of them, with fields
// by name or by position, or Dynamo's event-plane envelope around that. See
// DecodeAny for what the batches lack.
func (d *Decoder) DecodeRouterMsgpack(msg []byte) ([]Batch, error) {
	d.reset()
	r := msgpack.NewReader(msg)
	env := d.msgpackMessage(&r)
	if r.Err() == nil && r.Len() > 0 {
		r.Fail(fmt.Errorf("%w: %d bytes after the end", ErrMalformed, r.Len()))
	}
	if err := r.Err(); err != nil {
		return nil, routerError("msgpack", err)
	}
	if err := d.payload(env.payload); err != nil {
		return nil, routerError("msgpack", err)
	}
	if err := d.usable(); err != nil {
		return nil, err
	}
	return d.routerBatches(env.published), nil
}

// envelope is what the event plane says around a RouterEvent.
type envelope struct {
	payload   []byte // empty if the message is no envelope
	published int64  // Unix nanoseconds
}

// payload decodes what an envelope holds.
func (d *Decoder) payload(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if b[0] == '{' || b[0] == '[' {
		d.json.Reset(b)
		d.jsonMessage(&d.json)
		return d.json.Err()
	}
	r := msgpack.NewReader(b)
	if env := d.msgpackMessage(&r); r.Err() == nil && (len(env.payload) > 0 || r.Len() > 0) {
		r.Fail(fmt.Errorf("%w: an envelope holds RouterEvents only", ErrMalformed))
	}
	return r.Err()
}

// msgpackMessage reads a message's one value. Whether an array is one RouterEvent by
// position or a list of them shows in its first element alone: a RouterEvent begins with
// its worker's id, a list with a map or an array.
func (d *Decoder) msgpackMessage(r *msgpack.Reader) (env envelope) {
	start := *r
	if r.Kind() == msgpack.Map {
		return d.msgpackElement(r, false)
	}
	n := r.Array()
	if k := r.Kind(); n > 0 && (k == msgpack.Int || k == msgpack.Str) {
		*r = start
		return d.msgpackElement(r, false)
	}
	for i := 0; i < n && r.Err() == nil; i++ {
		d.msgpackElement(r, true)
	}
	return env
}

// msgpackNamed reads a RouterEvent with named fields, or an envelope: which of them it
// is shows only when all fields are read, as their order is free.
func (d *Decoder) msgpackNamed(r *msgpack.Reader) (env envelope) {
	re := d.begin()
	n := r.Map()
	for i := 0; i < n && r.Err() == nil; i++ {
		switch string(r.Str()) {
		case "worker_id":
			msgpackWorker(r, &re)
		case "storage_tier":
			msgpackTier(r, &re)
		case "residency_domain":
			msgpackDomain(r, &re)
		case "event":
			d.msgpackEvent(r, &re)
		case "payload":
			env.payload = r.Bin()
		case "published_at": // milliseconds
			if ms := msgpackTime(r); env.published == 0 && ms <= math.MaxInt64/uint64(time.Millisecond) {
				env.published = int64(ms) * int64(time.Millisecond)
			}
		case "published_at_ns":
			if ns := msgpackTime(r); ns > 0 && ns <= math.MaxInt64 {
				env.published = int64(ns)
			}
		default:
			r.Skip()
		}
	}
	if r.Err() == nil && len(env.payload) == 0 {
		r.Fail(d.add(&re))
	}
	return env
}

// msgpackTime reads a time, 0 if it is nil.
func msgpackTime(r *msgpack.Reader) uint64 {
	if r.Nil() {
		return 0
	}
	return r.Uint64()
}

// msgpackPositional reads the n fields of a RouterEvent: worker id; tier and
// domain, which older ones lack; event; perhaps more.
func (d *Decoder) msgpackPositional(r *msgpack.Reader, n int) {
	re := d.begin()
	for i := 0; i < n && r.Err() == nil; i++ {
		kind := r.Kind()
		switch {
		case i == 0:
			msgpackWorker(r, &re)
		case re.seen&fieldEvent != 0:
			r.Skip()
		case kind == msgpack.Array || kind == msgpack.Map:
			d.msgpackEvent(r, &re)
		case i == 1:
			msgpackTier(r, &re)
		default:
			msgpackDomain(r, &re)
		}
	}
	if r.Err() == nil {
		r.Fail(d.add(&re))
	}
}

func msgpackWorker(r *msgpack.Reader, re *routerEvent) {
	re.seen |= fieldWorker
	if r.Kind() == msgpack.Str {
		re.worker = WorkerID(string(r.Str()))
		return
	}
	re.worker = r.Uint64()
}

// msgpackTier reads a tier by name or by its number in Dynamo's enumeration,
// which is ours. Nil stands for the default.
func msgpackTier(r *msgpack.Reader, re *routerEvent) {
	switch r.Kind() {
	case msgpack.Nil:
		r.Nil()
	case msgpack.Int:
		t := r.Uint64()
		if t >= NumTiers {
			r.Fail(fmt.Errorf("%w: storage tier %d", ErrMalformed, t))
			return
		}
		re.ev.Tier = Tier(t)
	default:
		name := r.Str()
		if r.Err() == nil {
			r.Fail(re.setTier(name))
		}
	}
}

// msgpackDomain reads whose the blocks are: by name, or by number, of which 0 is the
// worker. What is neither, nil among it, leaves the default, which is the worker too.
func msgpackDomain(r *msgpack.Reader, re *routerEvent) {
	switch r.Kind() {
	case msgpack.Str:
		re.foreign = residencyIsForeign(r.Str())
	case msgpack.Int:
		re.foreign = r.Uint64() != 0
	default:
		r.Skip()
	}
}

// msgpackFields reads the header of a struct with named or positional fields.
func msgpackFields(r *msgpack.Reader) (n int, named bool) {
	if r.Kind() == msgpack.Map {
		return r.Map(), true
	}
	return r.Array(), false
}

// msgpackEvent reads {event_id, data, dp_rank}.
func (d *Decoder) msgpackEvent(r *msgpack.Reader, re *routerEvent) {
	re.seen |= fieldEvent
	n, named := msgpackFields(r)
	for i := 0; i < n && r.Err() == nil; i++ {
		field := i
		if named {
			field = eventField(r.Str())
		}
		switch field {
		case 0:
			re.seen |= fieldID
			re.ev.ID = r.Uint64()
		case 1:
			re.seen |= fieldData
			d.msgpackData(r, re)
		case 2:
			if !r.Nil() {
				re.ev.DPRank = r.Uint32()
			}
		default:
			r.Skip()
		}
	}
}

// msgpackData reads the enumeration of what happened: a name alone, or a map
// of the name to its content.
func (d *Decoder) msgpackData(r *msgpack.Reader, re *routerEvent) {
	d.restart(re)
	content := false
	if r.Kind() == msgpack.Map {
		if n := r.Map(); n != 1 {
			r.Fail(fmt.Errorf("%w: data with %d kinds, want 1", ErrMalformed, n))
			return
		}
		content = true
	}
	name := r.Str()
	if r.Err() != nil {
		return
	}
	switch {
	case string(name) == "cleared":
		re.ev.Kind = Cleared
		if content {
			r.Skip()
		}
	case string(name) == "stored" && content:
		re.ev.Kind = Stored
		d.msgpackStored(r, re)
	case string(name) == "removed" && content:
		re.ev.Kind = Removed
		d.msgpackRemoved(r)
	default:
		r.Fail(fmt.Errorf("%w: data %q", ErrMalformed, name))
	}
}

// msgpackStored reads {parent_hash, start_position, blocks}. The position follows from
// the parent, and is not looked at.
func (d *Decoder) msgpackStored(r *msgpack.Reader, re *routerEvent) {
	n, named := msgpackFields(r)
	blocks := false
	for i := 0; i < n && r.Err() == nil; i++ {
		field := i
		if named {
			field = storedField(r.Str())
		}
		switch field {
		case 0:
			re.ev.HasParent, re.ev.Parent = false, 0
			if !r.Nil() {
				re.ev.HasParent, re.ev.Parent = true, r.Bits64()
			}
		case 2:
			blocks = true
			count := r.Array()
			for j := 0; j < count && r.Err() == nil; j++ {
				d.msgpackBlock(r)
			}
		default:
			r.Skip()
		}
	}
	if !blocks {
		r.Fail(errMissingHashes)
	}
}

// msgpackBlock reads {block_hash, tokens_hash, mm_extra_info}.
func (d *Decoder) msgpackBlock(r *msgpack.Reader) {
	n, named := msgpackFields(r)
	var engine, local uint64
	seen := 0
	for i := 0; i < n && r.Err() == nil; i++ {
		field := i
		if named {
			field = blockField(r.Str())
		}
		switch field {
		case 0:
			engine = r.Bits64()
			seen |= 1
		case 1:
			local = r.Bits64()
			seen |= 2
		default:
			r.Skip()
		}
	}
	if seen != 3 {
		r.Fail(errMissingBlock)
	}
	d.hashes = append(d.hashes, engine)
	d.locals = append(d.locals, local)
}

// msgpackRemoved reads {block_hashes}.
func (d *Decoder) msgpackRemoved(r *msgpack.Reader) {
	n, named := msgpackFields(r)
	hashes := false
	for i := 0; i < n && r.Err() == nil; i++ {
		if (named && string(r.Str()) != "block_hashes") || (!named && i > 0) {
			r.Skip()
			continue
		}
		hashes = true
		d.hashes = r.AppendHashes(d.hashes)
	}
	if !hashes {
		r.Fail(errMissingHashes)
	}
}
