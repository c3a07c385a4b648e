package core

// paged is a list in pages, of which the first grows and the others are made whole: so no more than a page is
// ever moved, however long it is, and the writer does not stop for that.
type paged[T any] struct {
	pages [][]T // behind the last one perhaps one more that is not in use
	n     int
}

const (
	pageItemBits = 10
	pageItems    = 1 << pageItemBits
)

func (l *paged[T]) len() int { return l.n }

func (l *paged[T]) at(i uint32) T { return l.pages[i>>pageItemBits][i&(pageItems-1)] }

func (l *paged[T]) set(i uint32, v T) { l.pages[i>>pageItemBits][i&(pageItems-1)] = v }

// full reports whether the next item begins a page.
func (l *paged[T]) full() bool {
	last := len(l.pages) - 1
	return last < 0 || len(l.pages[last]) == pageItems
}

// grows reports whether the next item may take memory.
func (l *paged[T]) grows() bool {
	if l.full() {
		return l.spare() == nil
	}
	return len(l.pages) == 1 && l.n == cap(l.pages[0])
}

// spare returns the page that is not in use, or nil.
func (l *paged[T]) spare() []T {
	if k := len(l.pages); k < cap(l.pages) {
		return l.pages[:k+1][k]
	}
	return nil
}

// add puts an item at the end.
func (l *paged[T]) add(v T) {
	if l.full() {
		page := l.spare()
		if page == nil && len(l.pages) > 0 {
			page = make([]T, 0, pageItems)
		}
		l.pages = append(l.pages, page)
	}
	last := len(l.pages) - 1
	if last == 0 && l.n == cap(l.pages[0]) {
		l.pages[0] = append(make([]T, 0, min(max(2*l.n, 4), pageItems)), l.pages[0]...)
	}
	l.pages[last] = append(l.pages[last], v)
	l.n++
}

// cut takes the items from the n-th on away.
func (l *paged[T]) cut(n int) {
	keep := max((n+pageItems-1)>>pageItemBits, 1)
	all := l.pages[:min(len(l.pages)+1, cap(l.pages))]
	for i := len(all) - 1; i > keep; i-- {
		all[i] = nil
	}
	if keep < len(l.pages) {
		clear(all[keep])
		all[keep] = all[keep][:0]
	}
	last := all[keep-1]
	at := n - (keep-1)<<pageItemBits
	clear(last[at:])
	all[keep-1] = last[:at]
	l.pages, l.n = all[:keep], n
}

// copied returns the items.
func (l *paged[T]) copied() []T {
	all := make([]T, 0, l.n)
	for _, page := range l.pages {
		all = append(all, page...)
	}
	return all
}

// bytes returns the memory of a list of items of a size.
func (l *paged[T]) bytes(item int64) int64 {
	if len(l.pages) == 0 {
		return 0
	}
	whole := int64(len(l.pages) - 1)
	if l.spare() != nil {
		whole++
	}
	return sizeClass(int64(cap(l.pages))*24) + whole*pageItems*item + sizeClass(int64(cap(l.pages[0]))*item)
}

// fit gives back what the first page has room for beyond some more, if it is the only one.
func (l *paged[T]) fit() {
	if len(l.pages) == 1 && cap(l.pages[0]) > l.n+l.n/2+8 {
		l.pages = [][]T{append(make([]T, 0, l.n+l.n/2+8), l.pages[0]...)}
	}
}
