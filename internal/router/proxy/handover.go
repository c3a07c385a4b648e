package proxy

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// transferFields are those by which engines are told where a prompt's KV entries, or what is computed
// of its images, are or go, and which of an engine's ranks is to compute it. Whoever
// may set them makes an engine connect to an address, read another request's
// entries, or take a request elsewhere than it was booked: it is for the router to say.
var transferFields = []string{
	paramsField, "ec_transfer_params", "disaggregated_params",
	// SGLang's, as its main branch reads them in November 2026, and those of its releases before.
	"bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key", "decode_tp_size",
	"pd_prefill_admission_ack", "decode_token_reservation_id",
	"disagg_prefill_dp_rank", "routed_dp_rank", "data_parallel_rank", "data_parallel_rank_decode",
	"kv_router_hint", "http_worker_ipc",
	"encoder_urls", "num_items_assigned", "need_wait_for_image", "need_wait_for_mm_inputs",
	"prefill_host", "embedding_port",
}

func transferField(name string) bool { return slices.Contains(transferFields, name) }

// nestingField reports whether engines read such fields from inside the member too.
// SGLang's /vertex_generate takes what stands in parameters for the request's own fields.
func nestingField(name string) bool {
	switch name {
	case "sampling_params", "extra_args", "vllm_xargs", "custom_params", "parameters":
		return true
	}
	return false
}

// idField reports whether the member names the request. vLLM's connector between
// peers reads addresses from that name.
func idField(name string) bool { return name == "request_id" || name == "rid" }

// Parts of a request's name that are addresses.
var addressMarks = []string{"___prefill_addr_", "___decode_addr_"}

func namesAddress[T string | []byte](id T) bool {
	return slices.ContainsFunc(addressMarks, func(mark string) bool { return strings.Contains(string(id), mark) })
}

// handsOver reports whether a member of a body may tell engines where a prompt's KV
// entries are. It may say so of one that does not: blankTransfers looks closer.
func handsOver(key string, raw []byte) bool {
	switch {
	case transferField(key):
		return true
	case nestingField(key):
		return bytes.IndexByte(raw, '\\') >= 0 ||
			slices.ContainsFunc(transferFields, func(name string) bool { return bytes.Contains(raw, []byte(name)) })
	case idField(key):
		return namesAddress(raw) || bytes.IndexByte(raw, '\\') >= 0
	}
	return false
}

// blankTransfers overwrites, with spaces, the members of a JSON object that tell
// engines where a prompt's KV entries are. The others stay where they are.
func blankTransfers(data []byte) error {
	var r jsonscan.Reader
	r.Reset(data)
	blankIn(&r, data, false)
	r.End()
	return r.Err()
}

// blankIn does so with the value that comes next; deep down in all that it has.
func blankIn(r *jsonscan.Reader, data []byte, deep bool) {
	switch r.Peek() {
	case '{':
		blankObject(r, data, deep)
	case '[':
		r.Open('[')
		for first := true; r.More(']', &first); {
			blankIn(r, data, deep)
		}
	default:
		r.Skip()
	}
}

func blankObject(r *jsonscan.Reader, data []byte, deep bool) {
	kept, end := false, 0 // whether a member stays, and where the last one ends
	r.Open('{')
	for first := true; r.More('}', &first); {
		begin := end // of what is between the members: a comma, and white space
		r.Peek()
		start := r.Offset()
		if begin == 0 {
			begin = start
		}
		key := string(r.Key())
		drop := transferField(key)
		switch {
		case drop:
			r.Skip()
		case idField(key):
			raw := r.Raw()
			var text jsonscan.Reader
			text.Reset(raw)
			drop = namesAddress(raw) || text.Peek() == '"' && namesAddress(text.Str()) || text.Peek() != '"' && bytes.IndexByte(raw, '\\') >= 0
		case deep || nestingField(key):
			blankIn(r, data, true)
		default:
			r.Skip()
		}
		if r.Err() != nil {
			return
		}
		end = r.Offset()
		switch {
		case drop:
			blank(data[begin:end])
		case !kept:
			blank(data[begin:start]) // the comma after members that are gone
			kept = true
		}
	}
}

func blank(b []byte) {
	for i := range b {
		b[i] = ' '
	}
}

// withoutTransfers takes what hands a prompt over out of the request, unless its
// caller is trusted with that and the model's engines have nobody to say it to them.
func (p *Proxy) withoutTransfers(r *http.Request, q *call) *refusal {
	if !q.m.Split() && p.trusted(r) {
		return nil
	}
	if namesAddress(r.Header.Get(headerRequest)) {
		r.Header.Del(headerRequest)
	}
	if !q.object && len(q.data) > 0 && (q.m.Split() || q.m.Peers()) {
		return refuse(http.StatusUnsupportedMediaType, "unsupported_media_type",
			"a model whose workers give each other KV entries takes JSON objects only: what else a body tells its engines is not known")
	}
	if q.transfer {
		if err := blankTransfers(q.data); err != nil {
			return refuse(http.StatusBadRequest, "malformed_json", "the body: "+err.Error())
		}
		q.transfer = false
		p.obs.handOvers.Inc()
	}
	return nil
}
