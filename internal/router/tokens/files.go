package tokens

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/tokenize"
)

// loadTokenizer reads the first there is of tokenizer.json, tekken.json and Kimi's tiktoken.model.
func loadTokenizer(files fs.FS, o tokenize.Options) (*tokenize.Tokenizer, error) {
	for _, name := range []string{"tokenizer.json", "tekken.json"} {
		if data, err := fs.ReadFile(files, name); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return nil, fmt.Errorf("tokenizer: %w", err)
			}
			return tokenize.Load(data, o)
		}
	}
	data, err := fs.ReadFile(files, "tiktoken.model")
	if err != nil {
		return nil, fmt.Errorf("tokenizer: no tokenizer.json, tekken.json or tiktoken.model: %w", err)
	}
	if o.Specials, err = kimiSpecials(files, data); err != nil {
		return nil, fmt.Errorf("tiktoken.model: %w", err)
	}
	o.Pattern, o.Kimi = tokenize.KimiPattern, true
	return tokenize.Load(data, o)
}

// kimiReserved is how many special tokens Kimi's tokenizer has behind those of the file.
const kimiReserved = 256

// kimiSpecials are the special tokens that Kimi's own code gives its tokenizer (tokenization_kimi.py of
// moonshotai/Kimi-K2-Instruct): by tokenizer_config.json, and the others by a name of their own. The
// file does not say whose pattern it is for; that is known of Kimi's alone.
func kimiSpecials(files fs.FS, data []byte) (map[string]uint32, error) {
	text, err := fs.ReadFile(files, "tokenizer_config.json")
	if err != nil {
		return nil, err
	}
	var conf struct {
		Code struct {
			AutoTokenizer json.RawMessage
		} `json:"auto_map"`
		Added map[string]struct{ Content string } `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	if !strings.Contains(string(conf.Code.AutoTokenizer), "tokenization_kimi.") {
		return nil, fmt.Errorf("%w: its pattern is known for Kimi's code only (auto_map of tokenizer_config.json)", tokenize.ErrUnsupported)
	}
	base := uint32(0)
	for line := range bytes.Lines(data) {
		if len(bytes.TrimSpace(line)) > 0 {
			base++
		}
	}
	specials := make(map[string]uint32, kimiReserved)
	for id := base; id < base+kimiReserved; id++ {
		name := conf.Added[strconv.FormatUint(uint64(id), 10)].Content
		if name == "" {
			name = fmt.Sprintf("<|reserved_token_%d|>", id)
		}
		if _, twice := specials[name]; twice {
			return nil, fmt.Errorf("tokenizer_config.json: the special token %.64q stands twice", name)
		}
		specials[name] = id
	}
	return specials, nil
}
