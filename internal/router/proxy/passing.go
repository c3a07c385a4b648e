package proxy

import (
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// A prompt's tokens that were made here, and that the chosen engine itself was seen to make, may
// go with the request, so that they are not made a second time. The body stays the client's
// but for them. Where an engine does not take them, or the request says anything of its text
// that tokens would leave out, it goes as it came.

// Where engines take the tokens of a chat, and since which release: vLLM in place of rendering
// (#48145), and of what becomes a chat there since 0.33.0 at the latest; SGLang as a field of the request (#28744). Both parse answers as before, by the messages
// and tools that stay in the body. Those of a completion all releases take as its prompt.
var chatTokens = map[string]struct {
	since [3]int
	field string
}{
	"vllm":   {[3]int{0, 27, 0}, paramsField},
	"sglang": {[3]int{0, 5, 13}, inputField},
}

// otherTokens is the release of vLLM that was seen to take the tokens of /v1/messages and /v1/responses.
var otherTokens = [3]int{0, 33, 0}

const (
	inputField  = "input_ids"
	promptField = "prompt"
	idsInParams = "prompt_token_ids" // of vLLM's kv_transfer_params
)

// textual are the fields that say something of the prompt's text: an engine that is given
// tokens would not do what they ask for, or the client has given tokens itself.
var textual = []string{"echo", "return_prompt_text", "truncate_prompt_tokens", "suffix", "prompt_embeds", inputField, paramsField}

// givenIDs is what goes to an engine in place of a prompt's text. Its zero value is nothing.
type givenIDs struct {
	drop   []string
	add    []byte // members of the body
	params []byte // members of its kv_transfer_params
}

// pass says how the request's tokens go to the engine.
func (p *Proxy) pass(q *call, e *fleet.Engine) (g givenIDs) {
	if !p.cfg.PassTokens || !q.api.choices && !q.api.splits || q.ids == nil || len(q.ids.List) == 0 || !q.ids.Agreed(e.ID, e.Process()) {
		return g
	}
	software := e.Software()
	field, since := promptField, [3]int{}
	switch {
	case !q.api.choices:
		field, since = "", otherTokens
		if software.Name == "vllm" {
			field = paramsField
		}
	case q.chat && (software.Name == "sglang") != q.ids.SGLang(): // it has just said what it is
		field = ""
	case q.chat:
		field, since = chatTokens[software.Name].field, chatTokens[software.Name].since
	}
	if software.Name == "" || !software.Since(since) || field == "" || !onlyText(q.data) {
		p.obs.promptsAsText.Inc()
		return g
	}
	p.obs.promptsAsTokens.Inc()
	ids := idsJSON(q.ids.List)
	if field == paramsField {
		g.params = append([]byte(`"`+idsInParams+`":`), ids...)
		return g
	}
	g.drop, g.add = []string{field}, append([]byte(`"`+field+`":`), ids...)
	return g
}

// body returns what an engine gets that does all of a request.
func (p *Proxy) body(q *call, e *fleet.Engine) upstream.Payload {
	return p.bodyWith(q, e, nil)
}

// bodyWith is body with members of kv_transfer_params.
func (p *Proxy) bodyWith(q *call, e *fleet.Engine, params []byte) upstream.Payload {
	data := [][]byte{q.data}
	g := p.pass(q, e)
	switch {
	case params != nil:
		g.drop, g.add = append(g.drop, paramsField), slices.Concat(g.add, sep(g.add), g.paramsMember(params))
	case g.params != nil:
		g.drop, g.add = []string{paramsField}, g.paramsMember([]byte("{}"))
	}
	if g.add != nil {
		if with, err := splice(q.data, g.drop, g.add); err == nil {
			data = with
		}
	}
	return q.pieces(data)
}

// sep is a comma where something stands before.
func sep(before []byte) []byte {
	if len(before) == 0 {
		return nil
	}
	return comma
}

// paramsMember returns the member kv_transfer_params with what else it is to hold.
func (g *givenIDs) paramsMember(object []byte) []byte {
	pieces := [][]byte{object}
	if g.params != nil {
		if with, err := splice(object, []string{idsInParams}, g.params); err == nil { // else it is no object, and not ours to mend
			pieces = with
		}
	}
	return slices.Concat([]byte(`"`+paramsField+`":`), slices.Concat(pieces...))
}

// onlyText reports whether a prompt is one text, or a chat, of which the request says nothing else.
func onlyText(data []byte) bool {
	var r jsonscan.Reader
	r.Reset(data)
	r.Open('{')
	said := 0
	for first := true; r.More('}', &first); {
		name := string(r.Key())
		if name == promptField || name == "messages" || name == "input" {
			said++ // of several the engine takes the one that its route is for
		}
		switch {
		case name == promptField && r.Peek() != '"':
			return false // the first of several
		case name == "truncation":
			if string(r.Raw()) != `"disabled"` {
				return false // tokens that were given are not cut
			}
			continue
		case slices.Contains(textual, name) && r.Peek() != 'n': // null
			return false
		}
		r.Skip()
	}
	return r.Err() == nil && said == 1
}

func idsJSON(ids []uint32) []byte {
	out := make([]byte, 0, 7*len(ids)+2)
	out = append(out, '[')
	for i, id := range ids {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(id), 10)
	}
	return append(out, ']')
}
