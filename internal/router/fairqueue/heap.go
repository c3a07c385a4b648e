package fairqueue

import stdheap "container/heap"

// heap holds a tenant's items, in order or (slot 1) in the opposite. An item is in one
// of each and knows its places.
type heap struct {
	items []*Item
	slot  int
}

func (h *heap) push(i *Item)   { stdheap.Push(h, i) }
func (h *heap) remove(i *Item) { stdheap.Remove(h, i.at[h.slot]) }

// Len implements heap.Interface.
func (h *heap) Len() int { return len(h.items) }

// Less implements heap.Interface.
func (h *heap) Less(i, j int) bool {
	if h.slot == 1 {
		i, j = j, i
	}
	return h.items[i].before(h.items[j])
}

// Swap implements heap.Interface.
func (h *heap) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].at[h.slot], h.items[j].at[h.slot] = i, j
}

// Push implements heap.Interface.
func (h *heap) Push(x any) {
	i := x.(*Item) //nolint:forcetypeassert // the heap holds nothing else
	i.at[h.slot] = len(h.items)
	h.items = append(h.items, i)
}

// Pop implements heap.Interface.
func (h *heap) Pop() any {
	i := h.items[len(h.items)-1]
	h.items[len(h.items)-1], i.at[h.slot] = nil, -1
	h.items = h.items[:len(h.items)-1]
	return i
}
