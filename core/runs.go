package core

// runTable is the runs of an index by id, 0 being the root's. It is in pages, of which the last one grows: so
// no more than a page is ever moved, however many runs there are, and the writer does not stop for that.
type runTable struct {
	pages [][]*run
	n     int
}

const (
	runPageBits = 10
	runPage     = 1 << runPageBits
)

// len returns one more than the highest id so far.
func (t *runTable) len() int { return t.n }

// at returns the run of an id below len; nil if it is gone.
func (t *runTable) at(id uint32) *run { return t.pages[id>>runPageBits][id&(runPage-1)] }

func (t *runTable) set(id uint32, r *run) { t.pages[id>>runPageBits][id&(runPage-1)] = r }

// add enters a run under the next id.
func (t *runTable) add(r *run) {
	last := len(t.pages) - 1
	if t.n&(runPage-1) == 0 {
		t.pages = append(t.pages, nil)
		if last++; last > 0 {
			t.pages[last] = make([]*run, 0, runPage)
		}
	}
	t.pages[last] = append(t.pages[last], r)
	t.n++
}

func (t *runTable) bytes() int64 {
	if t.n == 0 {
		return 0
	}
	return int64(cap(t.pages))*24 + int64(len(t.pages)-1)*runPage*8 + sizeClass(int64(cap(t.pages[0]))*8)
}
