package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/tokenize"
)

// libraryRate is how many bytes a second engines tokenize: the Hugging Face library does 1.1 to 1.5 MB.
const libraryRate = 1.3e6

// chatML is the template of a model whose directory has none.
const chatML = `{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// tokenSizes are the prompts that are measured, in tokens.
var tokenSizes = []int{1000, 32_000, 128_000}

// tokenWay is one who makes the tokens.
type tokenWay struct {
	name string
	args []string
	made int64 // how often an engine makes tokens of one new prompt, the router's question among it
}

// tokenLine is one measurement, as it is printed.
type tokenLine struct {
	Target string  `json:"target"`
	Load   string  `json:"load"` // new: a text that nobody has seen; turn: the next message of one that was just answered
	Tokens int     `json:"tokens"`
	First  float64 `json:"first_byte_ms"` // median
	Added  float64 `json:"added_ms"`      // to the engine alone
	Made   float64 `json:"made_by_engines"`
}

// tokens measures how long chats take to their first byte, with engines that tokenize as real
// ones do, alone and behind a router that asks them for tokens, makes them, or passes them on.
func (s *scene) tokens(ctx context.Context, stdout io.Writer) (err error) {
	w, err := s.loadWords(s.model)
	if err != nil {
		return err
	}
	lines, err := sourceLines()
	if err != nil {
		return err
	}
	var urls []string
	var engines []*mockapi.Server
	for range s.options.engines {
		e, err := mockapi.New(mockapi.Config{Model: "m", Engine: mock.Config{Blocks: 1 << 17}, Tokenizer: w.whole, Default: 1,
			TokenizeTime: func(n int) time.Duration { return time.Duration(float64(n) / libraryRate * float64(time.Second)) }})
		if err != nil {
			return err
		}
		defer e.Close() //nolint:revive // all serve until it returns
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: e, ReadHeaderTimeout: time.Minute}
		defer func() { err = errors.Join(err, server.Close()) }() //nolint:revive // so
		go server.Serve(l)                                        //nolint:errcheck // ends with Close
		engines, urls = append(engines, e), append(urls, "http://"+l.Addr().String())
	}
	made := func() (n int64) {
		for _, e := range engines {
			n += e.Tokenized.Load()
		}
		return n
	}
	ways := []tokenWay{{name: "engine alone", made: 1}, {name: "asks an engine", made: 2},
		{name: "in process", args: []string{"--tokenizers=m=" + w.dir}, made: 1},
		{name: "in process, passed on", args: []string{"--tokenizers=m=" + w.dir, "--pass-tokens", "--models-every=1s"}}}
	s.targets = []target{{name: ways[0].name, address: strings.TrimPrefix(urls[0], "http://")}}
	_, path, _ := strings.Cut(s.routers[0], "=")
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	for i, way := range ways[1:] {
		args := append([]string{"--nats=none", "--kv-events=false", "--tokens=engine", "--model=m", "--block-size=16", "--tokenizer-sample=0", "--tokenize-hedge=0s",
			"--engines=" + strings.Join(urls, ",")}, way.args...)
		// It serves in its way once a text is tokenized as often as it is to be.
		serves := func(address string) bool {
			if !ask("http://" + address + "/v1/models") {
				return false
			}
			was := made()
			_, err := firstByte(ctx, address, conversation(text(r, lines, w.pieces, 50)))
			return err == nil && made()-was == way.made
		}
		if err := s.program(ctx, fmt.Sprintf("router%d", i), path, serves, args...); err != nil {
			return err
		}
		s.targets[i+1].name = way.name
	}
	var all []tokenLine
	for _, size := range tokenSizes {
		times, counts := map[tokenKey][]float64{}, map[tokenKey]int64{}
		for range s.rounds {
			for _, t := range s.targets {
				prompt := text(r, lines, w.pieces, size)
				// The turn goes on with the new one.
				for i, body := range [][]byte{conversation(prompt), conversation(prompt, "ok", text(r, lines, w.pieces, 40))} {
					was := made()
					took, err := firstByte(ctx, t.address, body)
					if err != nil {
						return fmt.Errorf("%s: %w", t.name, err)
					}
					key := tokenKey{t.name, []string{"new", "turn"}[i]}
					times[key], counts[key] = append(times[key], took), counts[key]+made()-was
				}
			}
		}
		for _, load := range []string{"new", "turn"} {
			alone, _, _ := median(times[tokenKey{ways[0].name, load}])
			for _, way := range ways {
				key := tokenKey{way.name, load}
				m, _, _ := median(times[key])
				all = append(all, tokenLine{way.name, load, size, hundredths(m), hundredths(m - alone), float64(counts[key]) / float64(s.rounds)})
			}
		}
	}
	return printTokens(stdout, all)
}

type tokenKey struct{ who, load string }

// firstByte sends a chat and returns after how many ms its answer began.
func firstByte(ctx context.Context, address string, body []byte) (ms float64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	begun := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	ms = time.Since(begun).Seconds() * 1e3
	data, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d %.200s", resp.StatusCode, data)
	}
	return ms, err
}

// conversation is a chat of a user's texts and the answers between them.
func conversation(texts ...string) []byte {
	messages := make([]map[string]string, len(texts))
	for i, s := range texts {
		messages[i] = map[string]string{"role": []string{"user", "assistant"}[i%2], "content": s}
	}
	body, _ := json.Marshal(map[string]any{"model": "m", "messages": messages, "max_tokens": 1, "stream": true}) // texts have JSON
	return body
}

// text is n tokens of lines in an order that nobody has seen.
func text(r *rand.Rand, lines []string, words *tokenize.Tokenizer, n int) string {
	var b strings.Builder
	var ids []uint32
	for size := 0; size < n; {
		line := lines[r.IntN(len(lines))]
		ids, _ = words.Encode(ids[:0], line, false) // lines are valid UTF-8
		size += len(ids)
		b.WriteString(line)
	}
	return b.String()
}

// sourceLines are the lines of this repository's code and documents.
func sourceLines() (lines []string, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".go", ".md"}, filepath.Ext(path)) {
			return err
		}
		data, err := os.ReadFile(path) //nolint:gosec // below the checkout
		lines = append(lines, strings.SplitAfter(strings.ToValidUTF8(string(data), ""), "\n")...)
		return err
	})
	return lines, err
}

// modelFiles is a directory of the model's files with a chat template, and its tokenizer.
func (s *scene) modelFiles(from string) (dir string, words *tokenize.Tokenizer, err error) {
	data, err := os.ReadFile(filepath.Join(from, "tokenizer.json"))
	if err != nil {
		return "", nil, err
	}
	if words, err = tokenize.Load(data, tokenize.Options{}); err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(filepath.Join(from, "tokenizer_config.json")); err == nil {
		return from, words, nil
	}
	dir = filepath.Join(s.dir, "model")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", nil, err
	}
	for name, content := range map[string][]byte{"tokenizer.json": data, "tokenizer_config.json": []byte("{}"), "chat_template.jinja": []byte(chatML)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return "", nil, err
		}
	}
	return dir, words, nil
}

func hundredths(f float64) float64 { return math.Round(f*100) / 100 }

func printTokens(stdout io.Writer, all []tokenLine) error {
	for _, l := range all {
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, string(b))
	}
	t := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "tokens\tload\twho\tfirst byte, ms\tadded\tmade by engines\t\n")
	for _, l := range all {
		fmt.Fprintf(t, "%d\t%s\t%s\t%.1f\t%+.1f\t%.0f\t\n", l.Tokens, l.Load, l.Target, l.First, l.Added, l.Made)
	}
	return t.Flush()
}
