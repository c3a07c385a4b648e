package console

import (
	"encoding/base64"
	"strconv"
	"sync"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// frame is one second of a view, as bytes that its readers share.
type frame struct {
	number, epoch uint64
	end           bool          // there are no more
	over          chan struct{} // closed when there is a newer one

	history  []byte
	members  []byte
	overview []byte
	events   []byte             // decisions
	delta    [numMetrics][]byte // what a reader of the frame before lacks; nil where nobody was
	cells    [numMetrics]*lazyCells
}

// lazyCells are the cells of all groups, written when somebody needs them who did not read
// the frame before.
type lazyCells struct {
	once  sync.Once
	write func() []byte
	bytes []byte
}

func (l *lazyCells) get() []byte {
	l.once.Do(func() { l.bytes = l.write() })
	return l.bytes
}

// whole returns the frame for a reader that has not read the one before: last is what it
// read last, nil if nothing.
func (f *frame) whole(m metric, last *frame) []byte {
	var b []byte
	if last == nil {
		b = append(b, f.history...)
	}
	if last == nil || last.epoch != f.epoch {
		b = append(b, f.members...)
	}
	b = append(b, f.overview...)
	b = append(b, f.cells[m].get()...)
	return append(b, f.events...)
}

// appendEvent appends a server-sent event of JSON in one line.
func appendEvent(b []byte, name string, v any) []byte {
	b = append(append(append(b, "event: "...), name...), "\ndata: "...)
	b = append(b, edge.JSON(v)...) // ends with a new line
	return append(b, '\n')
}

// appendCells appends the event of some groups' cells.
func appendCells(b []byte, epoch uint64, m metric, sc scale, groups []groupCells) []byte {
	b = append(b, `event: cells`+"\n"+`data: {"epoch":`...)
	b = strconv.AppendUint(b, epoch, 10)
	b = append(append(b, `,"metric":"`...), m.String()...)
	b = append(append(b, `","unit":"`...), sc.unit...)
	b = append(b, `","max":`...)
	b = strconv.AppendFloat(b, sc.most, 'g', -1, 64)
	b = append(b, `,"groups":[`...)
	for i, g := range groups {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, `{"key":"`...), g.key...)
		b = append(b, `","state":"`...)
		b = base64.StdEncoding.AppendEncode(b, g.state)
		b = append(b, `","value":"`...)
		b = base64.StdEncoding.AppendEncode(b, g.value)
		b = append(b, `"}`...)
	}
	return append(b, "]}\n\n"...)
}

// groupCells are the cells of one group.
type groupCells struct {
	key          string
	state, value []byte
}
