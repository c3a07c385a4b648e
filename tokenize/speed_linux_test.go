package tokenize

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// speed is one line of make bench-tokens.
type speed struct {
	Tokenizer string  `json:"tokenizer"`
	By        string  `json:"by"`
	CPUs      int     `json:"cpus"` // that it may run on; 1: what has more threads gains nothing by them
	LoadMS    float64 `json:"load_ms"`
	Cold      float64 `json:"cold_mb_s"`
	ColdCPU   float64 `json:"cold_cpu_mb_s"` // by the processor time of all its threads, as below
	Warm      float64 `json:"warm_mb_s"`
	WarmCPU   float64 `json:"warm_cpu_mb_s"`
	Equal     bool    `json:"ids_equal"`
	MemoryMB  float64 `json:"memory_mb,omitempty"`
	TurnMS    float64 `json:"turn_ms,omitempty"`

	IDs [][]uint32 `json:"ids,omitempty"`
}

// TestBenchTokens prints how fast real tokenizers are here and in the judges' libraries, on the same
// texts (code and prose of this repository, then of many scripts), one thread each, one after the other,
// on the one CPU that fetch.sh gives to all of them. fastokens comes a second time, on all CPUs and with as
// many threads as it likes: by processor time it is faster so.
func TestBenchTokens(t *testing.T) {
	dir := tokensDir(t)
	if os.Getenv("KVATLAS_BENCH_TOKENS") == "" {
		t.Skip("make bench-tokens runs this")
	}
	runtime.GOMAXPROCS(1)
	texts := benchTexts()
	b, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "texts.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"qwen3", "llama3_1", "gptoss", "deepseek_v3", "gemma3"} {
		path := filepath.Join(dir, name, "tokenizer.json")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Logf("SKIP %s: %v", name, err)
			continue
		}
		var want [][]uint32
		for _, library := range []string{"tokenizers", "fastokens", "fastokens-threads"} {
			s := speed{}
			out, err := exec.Command(filepath.Join(dir, "venv", "bin", "python"), "testdata/speed.py", library, path, file).Output()
			if err == nil {
				err = json.Unmarshal(out, &s)
			}
			if err != nil {
				t.Logf("SKIP %s by %s: %v", name, library, err)
				continue
			}
			if library == "tokenizers" {
				want = s.IDs
			}
			s.Tokenizer, s.By, s.Equal = name, library, slices.EqualFunc(s.IDs, want, slices.Equal)
			printSpeed(t, s)
		}
		printSpeed(t, ownSpeed(t, name, data, texts, want))
	}
}

func ownSpeed(t *testing.T, name string, data []byte, texts []string, want [][]uint32) speed {
	at := time.Now()
	tok, err := Load(data, Options{})
	s := speed{Tokenizer: name, By: "kvatlas", CPUs: runtime.NumCPU(), LoadMS: time.Since(at).Seconds() * 1e3}
	if err != nil {
		t.Fatal(err)
	}
	s.MemoryMB = float64(tok.Memory()) / 1e6
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	var ids [][]uint32
	for round := range 4 {
		ids = ids[:0]
		at, used := time.Now(), processorTime(t)
		for _, text := range texts {
			got, err := tok.Encode(nil, text, false)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, got)
		}
		rate := float64(size) / time.Since(at).Seconds() / 1e6
		cpu := float64(size) / (processorTime(t) - used).Seconds() / 1e6
		if round == 0 {
			s.Cold, s.ColdCPU = rate, cpu
		} else {
			s.Warm, s.WarmCPU = max(s.Warm, rate), max(s.WarmCPU, cpu)
		}
	}
	s.Equal = slices.EqualFunc(ids, want, slices.Equal)
	s.TurnMS = turnTime(t, data)
	return s
}

// processorTime is what all threads of this process have used.
func processorTime(t *testing.T) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// turnTime is how long a conversation of 80,000 tokens takes once it is known but for its last message.
func turnTime(t *testing.T, data []byte) float64 {
	tok, err := Load(data, Options{TurnCache: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	mark := "<|im_end|>"
	if len(tok.raw.tokens) > 1 {
		mark = tok.raw.tokens[1].Content
	}
	text, best := "", math.Inf(1)
	for i, s := range corpus() {
		if text += mark + s[:min(len(s), 12_000)]; i == 33 {
			break
		}
	}
	ids, _ := tok.Encode(nil, text, false)
	for i := range 5 {
		text += mark + fmt.Sprintf("And what does step %d of that do when the list is empty? It's for the tests.\n", i)
		at := time.Now()
		ids, err = tok.Encode(ids[:0], text, false)
		if err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(at).Seconds()*1e3)
	}
	return best
}

// benchTexts are texts of 30,000 to 150,000 tokens.
func benchTexts() []string {
	var out []string
	text := ""
	for _, s := range corpus() {
		if text += s; len(text) > 130_000*(1+len(out)%4) {
			out = append(out, text)
			if text = ""; len(out) == 4 {
				break
			}
		}
	}
	for len(text) < 150_000 {
		for _, s := range samples {
			text += s + "\n"
		}
	}
	return append(out, text)
}

func printSpeed(t *testing.T, s speed) {
	s.IDs = nil
	round := func(f float64) float64 { return math.Round(f*100) / 100 }
	for _, f := range []*float64{&s.LoadMS, &s.Cold, &s.ColdCPU, &s.Warm, &s.WarmCPU, &s.MemoryMB, &s.TurnMS} {
		*f = round(*f)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(string(b))
}
