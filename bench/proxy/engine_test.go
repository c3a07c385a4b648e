package main

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	decoder "github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

func body(question string) string {
	return `{"messages":[{"role":"system","content":"` + strings.Repeat("be brief ", 50) + `"},{"role":"user","content":"` + question + `"}],"model":"m","stream":true}`
}

// What an engine publishes is what it calls the tokens of a text: by its bytes, or by a
// model's files, with the template that prompts know the marks of and with another one.
func TestWhatIsPublishedIsWhatIsTokenized(t *testing.T) {
	publishesWhatItTokenizes(t, nil, token)
	for _, template := range []string{"", "{% for m in messages %}[{{ m.content }}]{% endfor %}"} {
		dir := t.TempDir()
		for name, file := range tokentest.Files(template) {
			if name != "tokenizer.json" && template == "" {
				continue // the marks are the benchmark's own
			}
			if err := os.WriteFile(filepath.Join(dir, name), file.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w, err := (&scene{dir: t.TempDir()}).loadWords(dir)
		if err != nil {
			t.Fatal(err)
		}
		publishesWhatItTokenizes(t, w, binary.LittleEndian.Uint32)
	}
}

func publishesWhatItTokenizes(t *testing.T, w *words, of func([]byte) uint32) {
	t.Helper()
	e, err := newEvents(cacheBlocks, of)
	if err != nil {
		t.Fatal(err)
	}
	close(e.stop) // this test publishes itself
	<-e.done
	defer e.publisher.Close() //nolint:errcheck // nobody has subscribed
	server := &engine{events: e, words: w, chunks: 3}
	address, err := startEngine(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer server.listener.Close() //nolint:errcheck // it ends with the test
	post := func(path, text string) string {
		resp, err := http.Post("http://"+address+path, "application/json", strings.NewReader(text)) //nolint:noctx // a server of the test's own
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, err)
		}
		return string(got)
	}
	d, err := decoder.NewDecoder(decoder.Config{BlockSize: blockSize})
	if err != nil {
		t.Fatal(err)
	}
	held := map[uint64]uint64{} // local hash by engine hash
	for _, question := range []string{"one", "two, which is longer than the first one by far, and then some", "one", "three"} {
		text := body(question)
		if got := post("/v1/chat/completions", text); strings.Count(got, "word") != 3 || !strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Errorf("a stream of %q", got)
		}
		var answer struct{ Tokens []uint32 }
		if err := json.Unmarshal([]byte(post("/tokenize", text)), &answer); err != nil {
			t.Fatal(err)
		}
		want, err := blockhash.LocalHashes(nil, answer.Tokens, blockSize, blockhash.Options{Seed: blockhash.Seed("", "")})
		if err != nil || len(answer.Tokens) < blockSize || w == nil && len(answer.Tokens) != len(text)/bytesPerToken {
			t.Fatal(len(answer.Tokens), err)
		}
		var events []event.Event // none of what is held already
		if payload := e.payload(); payload != nil {
			b, err := d.Decode(payload)
			if err != nil {
				t.Fatal(err)
			}
			events = b.Events
		}
		for _, ev := range events {
			if ev.Kind != event.Stored || ev.HasParent != (len(held) > 0) || ev.HasParent && held[ev.Parent] == 0 {
				t.Errorf("%+v", ev)
			}
			for i, h := range ev.Engine {
				held[h] = ev.Local[i]
			}
		}
		var known []uint64
		for _, l := range held {
			known = append(known, l)
		}
		for _, l := range want {
			if !slices.Contains(known, l) {
				t.Errorf("%s: a block of its prompt is not published", question)
			}
		}
	}
	if s := d.Stats(); s != (decoder.Stats{}) {
		t.Errorf("left out: %v", s)
	}
}

func TestOldBlocksMakeRoom(t *testing.T) {
	e := &events{blocks: cacheBlocks, token: token, held: map[uint64]struct{}{}}
	e.holds([]byte(body("first")))
	shared := len(e.held)
	for i := range cacheBlocks {
		e.holds([]byte(body(strings.Repeat(string(rune('a'+i%26)), 100) + strings.Repeat(string(rune(0x4e00+i/26)), 30))))
	}
	if len(e.held) != cacheBlocks+shared || len(e.ring) != cacheBlocks {
		t.Errorf("%d blocks are held, %d of them to be removed", len(e.held), len(e.ring))
	}
}

func TestTable(t *testing.T) {
	lines := []line{
		{Target: "direct", Load: "stream-1", Rate: 100, CPU: -1, counted: counted{P50: 1, P99: 2}},
		{Target: "k", Load: "stream-1", Rate: 50, CPU: 10, counted: counted{P50: 1.5, P99: 3}},
		{Target: "k", Load: "stream-1", Rate: 70, CPU: 12, counted: counted{P50: 1.25, P99: 5}},
		{Target: "k", Load: "stream-1", Rate: 60, CPU: 11, counted: counted{P50: 1.75, P99: 4}},
		{Target: "smg", Load: "stream-1", Rate: 30, CPU: 20, counted: counted{P50: 2, P99: 6}},
	}
	var out strings.Builder
	if err := table(&out, lines); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"60 [50–70] 2.00 1.500 0.500 4.00 [3.00–5.00] 11", "30 [30–30] 1.00 2.000 1.000"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// A rate is for what wrk measures in turns; a fleet's streams and tokens have their own.
func TestPaceIsOfTurns(t *testing.T) {
	for args, want := range map[string]bool{"-pace 8000": true, "-index -pace 8000": true, "-pace -1": false, "-pace 1 -load 5": false, "-pace 1 -model-files .": false} {
		if _, err := parse(strings.Fields(args), io.Discard); (err == nil) != want {
			t.Errorf("%s: %v, want it taken: %v", args, err, want)
		}
	}
}

// What grows steadily has its step as slope, whatever comes and goes about it.
func TestSlope(t *testing.T) {
	for want, values := range map[float64][]float64{0: {5, 5, 5}, 2: {1, 3, 5, 7}, -1: {3, 2, 1}, 0.5: {0, 1, 0.5, 1, 2, 2.5}} {
		if got := slope(values); got < want-0.05 || got > want+0.05 {
			t.Errorf("%v grow by %v, want %v", values, got, want)
		}
	}
	if got := slope(nil) + slope([]float64{7}); got != 0 {
		t.Errorf("nothing grows by %v", got)
	}
}
