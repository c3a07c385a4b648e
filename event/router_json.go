package event

import (
	"fmt"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// DecodeRouterJSON decodes one RouterEvent or an array of them. See DecodeAny
// for what the batches lack.
func (d *Decoder) DecodeRouterJSON(msg []byte) ([]Batch, error) {
	d.reset()
	d.json.Reset(msg)
	d.jsonMessage(&d.json)
	if err := d.json.Err(); err != nil {
		return nil, routerError("JSON", err)
	}
	if err := d.usable(); err != nil {
		return nil, err
	}
	return d.routerBatches(0), nil
}

func (d *Decoder) jsonMessage(r *jsonscan.Reader) {
	if r.Peek() == '[' {
		r.Open('[')
		for first := true; r.More(']', &first); {
			d.jsonElement(r)
		}
	} else {
		d.jsonElement(r)
	}
	r.End()
}

func (d *Decoder) jsonRouterEvent(r *jsonscan.Reader) {
	re := d.begin()
	r.Open('{')
	for first := true; r.More('}', &first); {
		switch string(r.Key()) {
		case "worker_id":
			re.seen |= fieldWorker
			re.worker = jsonWorker(r)
		case "storage_tier":
			if !r.Null() {
				if name := r.Str(); r.Err() == nil {
					r.Fail(re.setTier(name))
				}
			}
		case "residency_domain":
			if !r.Null() {
				re.foreign = residencyIsForeign(r.Str())
			}
		case "event":
			re.seen |= fieldEvent
			d.jsonEvent(r, &re)
		default:
			r.Skip()
		}
	}
	if r.Err() == nil {
		r.Fail(d.add(&re))
	}
}

func jsonWorker(r *jsonscan.Reader) uint64 {
	if r.Peek() == '"' {
		return WorkerID(string(r.Str()))
	}
	return r.Uint64()
}

// jsonEvent reads {event_id, data, dp_rank}.
func (d *Decoder) jsonEvent(r *jsonscan.Reader, re *routerEvent) {
	r.Open('{')
	for first := true; r.More('}', &first); {
		switch eventField(r.Key()) {
		case 0:
			re.seen |= fieldID
			re.ev.ID = r.Uint64()
		case 1:
			re.seen |= fieldData
			d.jsonData(r, re)
		case 2:
			if !r.Null() {
				re.ev.DPRank = r.Uint32()
			}
		default:
			r.Skip()
		}
	}
}

// jsonData reads the enumeration of what happened: a name alone, or an object
// of the name to its content.
func (d *Decoder) jsonData(r *jsonscan.Reader, re *routerEvent) {
	d.restart(re)
	if r.Peek() == '"' {
		name := r.Str()
		if re.ev.Kind = Cleared; string(name) != "cleared" && r.Err() == nil {
			r.Fail(fmt.Errorf("%w: data %q", ErrMalformed, name))
		}
		return
	}
	r.Open('{')
	kinds := 0
	for first := true; r.More('}', &first); kinds++ {
		switch key := r.Key(); string(key) {
		case "stored":
			re.ev.Kind = Stored
			d.jsonStored(r, re)
		case "removed":
			re.ev.Kind = Removed
			d.jsonRemoved(r)
		case "cleared":
			re.ev.Kind = Cleared
			r.Skip()
		default:
			if r.Err() == nil {
				r.Fail(fmt.Errorf("%w: data %q", ErrMalformed, key))
			}
		}
	}
	if kinds != 1 {
		r.Fail(fmt.Errorf("%w: data with %d kinds, want 1", ErrMalformed, kinds))
	}
}

// jsonStored reads {parent_hash, start_position, blocks}.
func (d *Decoder) jsonStored(r *jsonscan.Reader, re *routerEvent) {
	blocks := false
	r.Open('{')
	for first := true; r.More('}', &first); {
		switch storedField(r.Key()) {
		case 0:
			re.ev.HasParent, re.ev.Parent = false, 0
			if !r.Null() {
				re.ev.HasParent, re.ev.Parent = true, r.Uint64()
			}
		case 2:
			blocks = true
			r.Open('[')
			for first := true; r.More(']', &first); {
				d.jsonBlock(r)
			}
		default:
			r.Skip()
		}
	}
	if !blocks {
		r.Fail(errMissingHashes)
	}
}

// jsonBlock reads {block_hash, tokens_hash, mm_extra_info}.
func (d *Decoder) jsonBlock(r *jsonscan.Reader) {
	var engine, local uint64
	seen := 0
	r.Open('{')
	for first := true; r.More('}', &first); {
		switch blockField(r.Key()) {
		case 0:
			engine = r.Uint64()
			seen |= 1
		case 1:
			local = r.Uint64()
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

// jsonRemoved reads {block_hashes}.
func (d *Decoder) jsonRemoved(r *jsonscan.Reader) {
	hashes := false
	r.Open('{')
	for first := true; r.More('}', &first); {
		if string(r.Key()) != "block_hashes" {
			r.Skip()
			continue
		}
		hashes = true
		r.Open('[')
		for first := true; r.More(']', &first); {
			d.hashes = append(d.hashes, r.Uint64())
		}
	}
	if !hashes {
		r.Fail(errMissingHashes)
	}
}
