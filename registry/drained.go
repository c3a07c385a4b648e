package registry

import "time"

// drain is a drained mark.
type drain struct {
	marker
	since     time.Time
	by        string
	confirmed bool // by the last load, or since
}

func (l *ledger) drain(c change) error {
	if c.deleted {
		worker, err := drainWorker(c.key)
		if d := l.drains[worker]; err == nil && d != nil && !d.after(c) {
			delete(l.drains, worker)
			l.drainChanged(worker)
		}
		return err
	}
	worker, r, err := parseDrain(c.key, c.value)
	if err != nil {
		return err
	}
	if len(l.drains) >= l.cfg.maxWorkers && l.drains[worker] == nil {
		return corrupt("too_many", "already %d drained workers", len(l.drains))
	}
	before, d := l.drains[worker], &drain{marker: marker{c.revision, c.created}, since: r.Since, by: r.By, confirmed: true}
	if before != nil && before.after(c) {
		d.marker = before.marker
	}
	l.drains[worker] = d
	if before == nil || !before.since.Equal(r.Since) {
		l.drainChanged(worker)
	}
	return nil
}

func (l *ledger) drainChanged(worker uint64) {
	for _, m := range l.members {
		if m.key.Worker == worker && m.state != Gone {
			l.tell(Event{Kind: Updated, Entry: l.entry(m)})
		}
	}
}

// undrain takes back the drained marks that the last load did not bring and that are older than the own beat: a server
// of a cluster that is behind does not bring what it lacks, and has it before the beat.
func (l *ledger) undrain(beat change) {
	if l.loading {
		return
	}
	for worker, d := range l.drains {
		if !d.confirmed && !d.after(beat) {
			delete(l.drains, worker)
			l.drainChanged(worker)
		}
	}
}
