package tokens

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
	"github.com/kvatlas/kvatlas/tokenize"
)

// Options bound what a Model keeps and does.
type Options struct {
	// TurnCache is how many bytes of texts with their tokens are kept, by which the next
	// turn of a conversation encodes what is new; 0: none.
	TurnCache int
	// RenderTime bounds the writing of one prompt; 0: 1 s.
	RenderTime time.Duration
	Now        func() time.Time // nil: time.Now
	// Engine is whose rules of requests hold where modelfiles.Server does not say: as there.
	Engine string
}

// Model makes the tokens of one model's requests.
type Model struct {
	tokenizer *tokenize.Tokenizer
	writer    Writer
	template  *api.Template // nil: not known
	scores    api.ScoreRule
	harmony   bool             // vLLM has a way of its own from /v1/responses to the prompt
	dated     bool             // prompts have the date
	sglang    bool             // the rules of requests are SGLang's
	noChat    error            // why there is no writer
	now       func() time.Time // in the engine's zone
	bos       []uint32         // put before a text beside what the tokenizer puts around it
	noSpecial error            // why special tokens around a text are not known
	noText    error            // why ids do not become text as the engine makes it
	within    time.Duration
	bufs      sync.Pool // of *[]byte
}

// Load reads a model's files: tokenizer.json (or tekken.json, or Kimi's tiktoken.model), tokenizer_config.json,
// chat_template.jinja and additional_chat_templates/tool_use.jinja, and modelfiles.Server.
// Where
// chats cannot be written, texts are still encoded: Chats says why. The error is of a
// tokenizer that cannot be loaded (tokenize.ErrUnsupported if it cannot be done exactly), or
// of a wrong modelfiles.Server.
func Load(files fs.FS, o Options) (*Model, error) {
	m := &Model{within: o.RenderTime}
	if m.within == 0 {
		m.within = time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	var err error
	if m.tokenizer, err = loadTokenizer(files, tokenize.Options{TurnCache: o.TurnCache}); err != nil {
		return nil, err
	}
	server, err := readServer(files)
	if err != nil {
		return nil, err
	}
	server.Engine = cmp.Or(server.Engine, o.Engine)
	zone, err := time.LoadLocation(server.Zone)
	if err != nil {
		return nil, fmt.Errorf("%s: time_zone: %w", modelfiles.Server, err)
	}
	m.now = func() time.Time { return o.Now().In(zone) }
	m.bufs.New = func() any { return new([]byte) }
	if m.writer, m.noChat = server.writer(files, zone, o.Now); m.noChat == nil {
		m.template = server.probe(files, zone, o.Now, m.within)
	}
	if cfg, err := server.config(files, zone, o.Now); err == nil {
		m.dated = cfg.Encoder == chat.Harmony || strings.Contains(cfg.Template+cfg.ToolTemplate, "strftime_now")
		m.harmony, m.sglang = cfg.Encoder == chat.Harmony, cfg.Engine == chat.SGLang
	}
	if ids, err := m.tokenizer.Encode(nil, HarmonyText, false); err == nil {
		m.harmony = m.harmony || slices.Equal(ids, harmonyIDs) // also where config.json is not there
	}
	m.scores = server.scores(files, zone, o.Now)
	m.noSpecial, m.noText = m.checkConfig(files)
	return m, nil
}

// Memory is about how many bytes the model takes, its caches when full included.
func (m *Model) Memory() int { return m.tokenizer.Memory() }

// skew is how far an engine's clock may be from the router's.
const skew = time.Minute

// turning reports whether an engine may be at another day, by its clock: a template that writes the
// date, and harmony, write another prompt there, which says nothing of the files.
func (m *Model) turning() bool {
	now := m.now()
	return m.dated && now.Add(-skew).Day() != now.Add(skew).Day()
}

// Chats returns why chats are not written here; nil if they are.
func (m *Model) Chats() error { return m.noChat }

// checkConfig looks at what tokenizer_config.json says that tokenizer.json does not do: of some
// classes transformers goes by the first.
func (m *Model) checkConfig(files fs.FS) (noSpecial, noText error) {
	data, err := fs.ReadFile(files, "tokenizer_config.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return err, err
	}
	v, err := jinja.ParseJSON(string(data))
	if err != nil {
		return err, err
	}
	conf, ok := v.AsDict()
	if !ok {
		err := errors.New("tokenizer_config.json is not an object")
		return err, err
	}
	if clean := conf.Get("clean_up_tokenization_spaces"); clean == jinja.True {
		noText = errors.New("clean_up_tokenization_spaces of tokenizer_config.json")
	}
	return m.checkSpecial(conf), noText
}

// sglangRestores are the classes of tokenizers for which SGLang (0.5.23) does what add_bos_token says where
// transformers goes by tokenizer.json, DeepSeek's among them.
var sglangRestores = []string{"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast", "CohereTokenizerFast"}

// checkSpecial compares what the file says is put around a text with what the tokenizer puts there.
func (m *Model) checkSpecial(conf *jinja.Dict) error {
	class, _ := conf.Get("tokenizer_class").AsString()
	llama := strings.Contains(class, "Llama") || strings.Contains(class, "Gemma") // these rebuild the post-processor
	around, err := m.tokenizer.Encode(nil, "", true)
	if err != nil {
		return err
	}
	for _, end := range []struct {
		name, token string
		otherwise   bool
	}{{"add_bos_token", "bos_token", llama}, {"add_eos_token", "eos_token", false}} {
		want := conf.Get(end.name)
		if want.IsMissing() && !llama {
			continue
		}
		token := conf.Get(end.token)
		if d, ok := token.AsDict(); ok {
			token = d.Get("content")
		}
		text, _ := token.AsString()
		id, err := m.tokenizer.Encode(nil, text, false)
		if err != nil {
			return err
		}
		puts := len(id) == 1 && slices.Contains(around, id[0])
		is := want == jinja.True || want.IsMissing() && end.otherwise
		if is && end.name == "add_bos_token" && m.sglang && slices.Contains(sglangRestores, class) && len(id) == 1 && len(around) == 0 {
			m.bos = id
			continue
		}
		if is != puts {
			return fmt.Errorf("%s of tokenizer_config.json, which tokenizer.json does not do", end.name)
		}
	}
	return nil
}

// Tokens appends the ids of the prompt of a request to dst. The error is an AskError.
func (m *Model) Tokens(ctx context.Context, f Form, body []byte, dst []uint32) ([]uint32, error) {
	ids, err := m.tokens(ctx, f, unsafe.String(unsafe.SliceData(body), len(body)), dst)
	if err != nil {
		return dst, asking(err)
	}
	return ids, nil
}

func (m *Model) tokens(ctx context.Context, f Form, body string, dst []uint32) ([]uint32, error) {
	if (f == Message || f == Response) && m.sglang || f == Response && m.harmony {
		return dst, ask(Unsupported, "such conversations of this engine or model")
	}
	c, err := read(f, body, api.Rules{Template: m.template})
	if err != nil {
		return dst, err
	}
	if c.Chat == nil {
		return m.encode(c.Text, c.Special, c.Salt, dst)
	}
	if m.writer == nil {
		return dst, ask(Unsupported, "chats: %w", m.noChat)
	}
	ctx, cancel := context.WithTimeout(ctx, m.within)
	defer cancel()
	buf := m.bufs.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer m.bufs.Put(buf)
	p, err := m.writer.Write(ctx, c.Chat, (*buf)[:0])
	if err != nil {
		return dst, err
	}
	if cap(p.Text) <= 4<<20 { // one of rare length is not kept
		*buf = p.Text[:0]
	}
	if p.Media {
		return dst, &AskError{Reason: Media}
	}
	text, done := unsafe.String(unsafe.SliceData(p.Text), len(p.Text)), 0
	for _, s := range p.Plain {
		if dst, err = m.encode(text[done:s.From], false, c.Salt, dst); err != nil {
			return dst, err
		}
		if dst, err = m.tokenizer.EncodePlain(dst, text[s.From:s.To], c.Salt); err != nil {
			return dst, err
		}
		done = s.To
	}
	return m.encode(text[done:], p.AddSpecial, c.Salt, dst)
}

// textOf returns the text of the ids in a request, as vLLM's /detokenize does. The error is an AskError.
func (m *Model) textOf(body []byte) (string, error) {
	if m.noText != nil {
		return "", ask(Unsupported, "%w", m.noText)
	}
	var r jsonscan.Reader
	r.Reset(body)
	var ids []uint32
	given := 0
	r.Open('{')
	for first := true; r.More('}', &first); {
		if string(r.Key()) != "tokens" {
			r.Skip()
			continue
		}
		given++
		ids = r.Uint32s(ids[:0], math.MaxInt)
	}
	if r.End(); r.Err() != nil || given != 1 {
		return "", ask(Refused, "no list of tokens")
	}
	text, err := m.tokenizer.Decode(ids, false)
	if err != nil {
		return "", &AskError{Unsupported, err}
	}
	return text, nil
}

// idQuestions are Questions of ids: those of the texts there.
func (m *Model) idQuestions(ctx context.Context, model string) (list []Probe) {
	name, err := json.Marshal(model)
	if err != nil {
		return nil // a text always has JSON
	}
	for _, q := range Questions(model) {
		ids, err := m.Tokens(ctx, q.Form, q.Body, nil)
		if err != nil {
			continue
		}
		body, err := json.Marshal(ids)
		if err == nil {
			list = append(list, Probe{Detokenize, fmt.Appendf(nil, `{"model":%s,"tokens":%s}`, name, body)})
		}
	}
	return list
}

func (m *Model) encode(text string, special bool, salt string, dst []uint32) ([]uint32, error) {
	if special && m.noSpecial != nil {
		return dst, ask(Unsupported, "%w", m.noSpecial)
	}
	if special {
		dst = append(dst, m.bos...)
	}
	return m.tokenizer.EncodeFor(dst, text, special, salt)
}
