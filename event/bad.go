package event

import (
	"fmt"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// Bad is a RouterEvent that cannot be used, in a message that is otherwise whole:
// what it did is not known, the others count.
type Bad struct {
	Err error
	// Named says that the event names its worker and rank; ID is then its id, 0
	// if it names none.
	Named  bool
	Worker uint64
	DPRank uint32
	ID     uint64
}

// Bad returns what is bad in the message that was decoded last. After an error
// that is the error's own event, if there is one, for its names; of a message
// that is broken in its form nothing is known.
func (d *Decoder) Bad() []Bad { return d.bad }

// jsonElement reads one RouterEvent. One that fails, but is whole in its form,
// is stepped over and noted as bad.
func (d *Decoder) jsonElement(r *jsonscan.Reader) {
	start, before := *r, d.marks()
	d.jsonRouterEvent(r)
	if r.Err() == nil {
		return
	}
	bad := Bad{Err: routerError("JSON", r.Err())}
	names := start
	bad.jsonNames(&names)
	if start.Skip(); start.Err() == nil {
		d.spoilt(bad, before)
		*r = start
	}
}

// marks is how full the arenas of RouterEvents are.
type marks struct{ events, hashes, locals int }

func (d *Decoder) marks() marks { return marks{len(d.events), len(d.hashes), len(d.locals)} }

// spoilt notes a bad event, of which the arenas keep nothing.
func (d *Decoder) spoilt(bad Bad, before marks) {
	d.events, d.pending = d.events[:before.events], d.pending[:before.events]
	d.hashes, d.locals = d.hashes[:before.hashes], d.locals[:before.locals]
	d.bad = append(d.bad, bad)
}

// jsonNames reads who the RouterEvent is of, and nothing else.
func (b *Bad) jsonNames(r *jsonscan.Reader) {
	var seen routerField
	r.Open('{')
	for first := true; r.More('}', &first); {
		switch string(r.Key()) {
		case "worker_id":
			seen |= fieldWorker
			b.Worker = jsonWorker(r)
		case "event":
			seen |= fieldEvent
			r.Open('{')
			for first := true; r.More('}', &first); {
				switch eventField(r.Key()) {
				case 0:
					b.ID = r.Uint64()
				case 2:
					if !r.Null() {
						b.DPRank = r.Uint32()
					}
				default:
					r.Skip()
				}
			}
		default:
			r.Skip()
		}
	}
	b.Named = r.Err() == nil && seen == fieldWorker|fieldEvent
}

// msgpackElement is jsonElement for msgpack; the message may be an envelope in
// place of an array's element.
func (d *Decoder) msgpackElement(r *msgpack.Reader, inArray bool) (env envelope) {
	start, before := *r, d.marks()
	if r.Kind() != msgpack.Map {
		d.msgpackPositional(r, r.Array())
	} else if env = d.msgpackNamed(r); inArray && len(env.payload) > 0 {
		r.Fail(fmt.Errorf("%w: an envelope in an array", ErrMalformed))
	}
	if r.Err() == nil {
		return env
	}
	bad := Bad{Err: routerError("msgpack", r.Err())}
	names := start
	bad.msgpackNames(&names)
	if start.Skip(); start.Err() == nil {
		d.spoilt(bad, before)
		*r = start
	}
	return envelope{}
}

// usable returns an error if all that the message has is bad.
func (d *Decoder) usable() error {
	if len(d.bad) > 0 && len(d.events) == 0 {
		return d.bad[0].Err
	}
	return nil
}

func (b *Bad) msgpackNames(r *msgpack.Reader) {
	var re routerEvent
	n, named := msgpackFields(r)
	for i := 0; i < n && r.Err() == nil; i++ {
		field := ""
		switch kind := r.Kind(); {
		case named:
			field = string(r.Str())
		case i == 0:
			field = "worker_id"
		case kind == msgpack.Array || kind == msgpack.Map:
			field = "event"
		}
		switch {
		case field == "worker_id":
			msgpackWorker(r, &re)
		case field == "event" && re.seen&fieldEvent == 0:
			re.seen |= fieldEvent
			b.msgpackEventNames(r)
		default:
			r.Skip()
		}
	}
	b.Worker = re.worker
	b.Named = r.Err() == nil && re.seen == fieldWorker|fieldEvent
}

func (b *Bad) msgpackEventNames(r *msgpack.Reader) {
	n, named := msgpackFields(r)
	for i := 0; i < n && r.Err() == nil; i++ {
		field := i
		if named {
			field = eventField(r.Str())
		}
		switch {
		case field == 0:
			b.ID = r.Uint64()
		case field == 2 && !r.Nil():
			b.DPRank = r.Uint32()
		case field != 2:
			r.Skip()
		}
	}
}
