package registry

import "fmt"

// Reaches reports whether prompts that are handed over in this way get to a worker that takes them as it says: where
// either does not say, nothing speaks against it.
func (t KVTransfer) Reaches(taken KVTransfer) bool { return t == "" || taken == "" || t == taken }

// Engine returns the kind of engines that hand prompts over in this way, as they own their models at /v1/models; ""
// if none is named.
func (t KVTransfer) Engine() string {
	switch t {
	case TransferVLLM, TransferMooncake:
		return "vllm"
	case TransferSGLang:
		return "sglang"
	}
	return ""
}

// counterpart reports whether prompts go between the two by their roles.
func (w *Worker) counterpart(o *Worker) bool { return (w.Role == Prefill) != (o.Role == Prefill) }

// unpaired says why a prefill or decode worker would be paired with none of those that are there for that; "" if it
// may be with one, if none is there yet, if it is there itself, or if not enough is said.
func (l *ledger) unpaired(w *Worker) string {
	if w.Role == Aggregated {
		return "" // it does all of a request
	}
	if m := l.members[w.Key()]; m != nil && m.state.present() && m.worker.Role == w.Role && m.worker.KVTransfer == w.KVTransfer {
		return "" // it says so once more
	}
	why := ""
	for k, m := range l.members {
		o := &m.worker
		if k == w.Key() || k.Space.Model != w.Model || k.Space.Group != w.Group || !m.state.present() || !w.counterpart(o) {
			continue
		}
		switch {
		case o.BlockSize != w.BlockSize:
			if why == "" {
				why = fmt.Sprintf("block_size is %d there, and %d here", o.BlockSize, w.BlockSize)
			}
		case o.KVTransfer.Reaches(w.KVTransfer):
			return ""
		default:
			why = fmt.Sprintf("kv_transfer is %s there, and %s here", o.KVTransfer, w.KVTransfer)
		}
	}
	return why
}
