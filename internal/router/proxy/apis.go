package proxy

import (
	"errors"
	"strings"

	"github.com/kvatlas/kvatlas/chat"
	chats "github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// dialect is what the router knows of a route whose prompt it reads.
type dialect struct {
	choices bool   // answers have "choices"
	chat    bool   // of messages, not of a prompt
	splits  bool   // a prefill worker may compute its prompt
	one     string // by what fields a prefill worker is asked for one token
	read    string // as what package chat/api reads its conversation; "" if it is no chat, or one as it is
	scores  bool   // its prompts are texts in pairs
}

// apis are the routes of which the prompt decides where requests go. count_tokens is not among
// them, which uses no cache, and which the router may answer itself.
var apis = map[string]dialect{
	"/v1/completions":          {choices: true, splits: true, one: oneToken},
	chats.PathChat:             {choices: true, chat: true, splits: true, one: oneToken},
	chats.PathMessages:         {splits: true, one: oneToken, read: chats.PathMessages},
	chats.PathResponses:        {splits: true, one: oneOutput, read: chats.PathResponses},
	chats.PathEmbeddings:       {},
	chats.PathClassify:         {},
	"/v1" + chats.PathClassify: {},
	chats.PathScore:            {read: chats.PathScore, scores: true},
	"/v1" + chats.PathScore:    {read: chats.PathScore, scores: true},
	chats.PathRerank:           {read: chats.PathRerank, scores: true},
	"/v1" + chats.PathRerank:   {read: chats.PathRerank, scores: true},
	"/v2" + chats.PathRerank:   {read: chats.PathRerank, scores: true},
}

// conversations are the APIs whose conversations become chats, as engines have rendering of.
var conversations = map[string]tokens.Form{chats.PathMessages: tokens.Message, chats.PathCountTokens: tokens.Message, chats.PathResponses: tokens.Response}

// place puts what was found in the body where its API has it.
func (q *call) place(most int) {
	if q.api.choices { // of prompt and messages the engine takes what its route is for
		q.chat = q.api.chat
	}
	if q.chat || q.api.read != "" || !q.api.choices { // what else is called a prompt means nothing there
		q.tokens, q.rest = nil, 0
	}
	if q.chat {
		q.text = q.messages
	}
	switch {
	case q.api.read != "":
		q.chat, q.text = true, q.data
	case !q.api.choices && q.chat:
		q.api.read, q.text = chats.PathEmbeddings, q.data
	case !q.api.choices:
		q.text = nil
		if q.input != nil {
			var r jsonscan.Reader
			r.Reset(q.input)
			q.body.prompt(&r, most)
		}
	case q.chat && q.effort:
		q.api.read = chats.PathChat
	}
	// What an engine keeps, or answers later, is not there for one that takes the prompt over.
	q.split = q.api.splits && q.refers == "" && !q.background
}

// Why a conversation is not read, in metrics.
const (
	unreadEngine  = "engine"
	unreadOther   = "unsupported"
	unreadRefused = "refused"
	unreadPast    = "past"
	unreadLong    = "too_long"
	unreadDiffers = "differs"
)

var errDiffers = errors.New("an engine makes another prompt of such a conversation")

var errEngine = errors.New("the model's engines do not all call themselves vLLM at /v1/models: how they read this is not known")

// converse makes of the request the one to /v1/chat/completions that has the same prompt; if
// that is not known, the request goes by load.
func (p *Proxy) converse(m *fleet.Model, q *call) bool {
	vllm := m.OwnedBy("vllm")
	if q.api.read == chats.PathChat && !vllm {
		return true // as it is
	}
	if len(q.data) > p.cfg.MaxPrompt*bytesPerToken {
		p.obs.unread[unreadLong].Inc()
		return false
	}
	defer p.reading(q)()
	text, err := p.asChat(m, q, q.api.read, vllm)
	if err == nil {
		if q.chats = text; q.api.scores {
			q.pairs(text)
		}
		return true
	}
	why := unreadOther
	var bad *chat.BadRequestError
	var failed *jinja.Error
	var past *chats.UnknownPastError
	switch {
	case errors.Is(err, errEngine):
		why = unreadEngine
	case errors.Is(err, errDiffers):
		why = unreadDiffers
	case errors.As(err, &bad), errors.As(err, &failed):
		why = unreadRefused
	case errors.As(err, &past):
		why = unreadPast
	}
	p.obs.unread[why].Inc()
	return false
}

// pairs notes what the prompts of a score are: the first, a text or a chat, and about how long the
// others are, but for what they have in common.
func (q *call) pairs(first []byte) {
	q.rest = max(len(q.data)-len(first), 0) / bytesPerToken
	if text, err := member(first, promptField); err == nil && text != nil {
		q.chat, q.text = false, text
	}
}

// asChat makes of a request to the path the one to /v1/chat/completions.
func (p *Proxy) asChat(m *fleet.Model, q *call, path string, vllm bool) ([]byte, error) {
	if !vllm {
		return nil, errEngine
	}
	v, err := jinja.ParseJSON(string(q.data))
	if err != nil {
		return nil, err
	}
	req, ok := v.AsDict()
	if !ok {
		return nil, &jinja.UnsupportedError{What: "a request that is no object"}
	}
	x := p.tokens.Of(m.Space)
	if form, is := conversations[path]; is {
		harmony, _ := x.Harmony()
		switch {
		case form == tokens.Response && (harmony || strings.Contains(strings.ToLower(m.Space.Model), "gpt-oss")):
			return nil, &jinja.UnsupportedError{What: "gpt-oss' conversations of /v1/responses, which have a way of their own to the prompt"}
		case x.Differs(form):
			return nil, errDiffers
		}
	}
	out, err := chats.Chat(path, req, chats.Rules{Template: x.Template(), Scores: x.Scores(), Past: p.past(m)})
	if err != nil {
		return nil, err
	}
	if path == chats.PathResponses {
		q.recalled = p.cfg.Responses > 0 && stores(req)
	}
	return jinja.AppendJSON(make([]byte, 0, len(q.data)+256), out.Value())
}
