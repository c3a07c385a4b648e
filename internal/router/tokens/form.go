package tokens

import (
	"errors"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// Form is the API by which a request came, which says how its body is read.
type Form uint8

// The forms.
const (
	Completion Form = iota // /v1/completions
	Chat                   // /v1/chat/completions
	Message                // /v1/messages
	Response               // /v1/responses
	forms                  // how many there are that have a prompt

	Detokenize // /detokenize, which is compared as they are
)

// Conversation is what a request asks the model to go on with, whichever API it came by:
// a chat, or a text.
type Conversation struct {
	// Chat is the request as a body of /v1/chat/completions says it: messages, tools,
	// chat_template_kwargs, reasoning_effort and so on. nil: Text is the prompt.
	Chat *jinja.Dict
	Text string
	// Special: the tokenizer adds its special tokens to Text. For a chat its body says so.
	Special bool
	Salt    string // of the request's cache: who gives another one learns nothing of it
}

// reader returns what makes of a body, which is an object, the conversation.
// An error is an AskError, a chat.BadRequestError or one of package chat/api or jinja.
func (f Form) reader() func(body *jinja.Dict, r api.Rules) (Conversation, error) {
	return [forms]func(*jinja.Dict, api.Rules) (Conversation, error){
		Completion: readCompletion,
		Chat:       readChat,
		Message:    readOther(api.PathMessages),
		Response:   readOther(api.PathResponses),
	}[f]
}

// readOther reads what becomes a chat.
func readOther(path string) func(*jinja.Dict, api.Rules) (Conversation, error) {
	return func(body *jinja.Dict, r api.Rules) (c Conversation, err error) {
		c.Chat, err = api.Chat(path, body, r)
		return c, err
	}
}

// readCompletion reads the prompt; of a list of prompts the first.
func readCompletion(body *jinja.Dict, _ api.Rules) (c Conversation, err error) {
	prompt := body.Get("prompt")
	if list, ok := prompt.AsList(); ok && len(list) > 0 {
		prompt = list[0]
	}
	var ok bool
	if c.Text, ok = prompt.AsString(); !ok {
		return c, ask(Unsupported, "a prompt that is no text")
	}
	if !absent(body, "prompt_embeds") {
		return c, ask(Unsupported, "prompt_embeds")
	}
	if c.Special, err = flag(body, "add_special_tokens", true); err != nil {
		return c, err
	}
	return c, uncut(body)
}

func readChat(body *jinja.Dict, _ api.Rules) (c Conversation, err error) {
	c.Chat = body
	return c, uncut(body)
}

// uncut refuses prompts of which the engine leaves something out.
func uncut(body *jinja.Dict) error {
	if !absent(body, "truncate_prompt_tokens") {
		return ask(Unsupported, "truncate_prompt_tokens")
	}
	return nil
}

func absent(body *jinja.Dict, name string) bool {
	v := body.Get(name)
	return v.IsMissing() || v.IsNone()
}

// flag reads a boolean field.
func flag(body *jinja.Dict, name string, otherwise bool) (bool, error) {
	switch v := body.Get(name); {
	case v.IsMissing():
		return otherwise, nil
	case v == jinja.True, v == jinja.False:
		return v == jinja.True, nil
	}
	return false, ask(Unsupported, "%s that is not true or false", name)
}

// read returns the body's conversation.
func read(f Form, body string, r api.Rules) (Conversation, error) {
	if f >= forms {
		return Conversation{}, ask(Unsupported, "a form that is not known")
	}
	v, err := jinja.ParseJSON(body)
	var limit *jinja.LimitError
	if errors.As(err, &limit) {
		return Conversation{}, err
	}
	if err != nil {
		return Conversation{}, &chat.BadRequestError{Msg: err.Error()}
	}
	d, ok := v.AsDict()
	if !ok {
		return Conversation{}, &chat.BadRequestError{Msg: "the request is not an object"}
	}
	c, err := f.reader()(d, r)
	c.Salt, _ = d.Get("cache_salt").AsString()
	return c, err
}
