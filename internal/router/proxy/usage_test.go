package proxy

import (
	"slices"
	"strings"
	"testing"
)

func TestUsageIsReadFromAnAnswer(t *testing.T) {
	for _, c := range []struct {
		tail string
		want usage
	}{
		{``, usage{-1, -1, -1}},
		{`{"usage":{"prompt_tokens":25,"completion_tokens": 8,"prompt_tokens_details":{"cached_tokens":16}}}`, usage{25, 8, 16}},
		{`{"completion_tokens":1,"prompt_tokens":2}` + "\n\n" + `{"completion_tokens":3}`, usage{2, 3, -1}}, // the last one counts
		{`{"text":"\"prompt_tokens\":7","cached_tokens":null,"total_tokens":9}`, usage{-1, -1, -1}},
		{`"completion_tokens":`, usage{-1, -1, -1}},
		{`{"usage":{"input_tokens":25,"input_tokens_details":{"cached_tokens":16},"output_tokens":8,"total_tokens":33}}`, usage{25, 8, 16}},                                                              // /v1/responses
		{`{"usage":{"cache_read_input_tokens":16,"input_tokens":25,"max_output_tokens":900,"output_tokens":8}}`, usage{41, 8, 16}},                                                                       // /v1/messages, whose input is what was not cached
		{`rompt_tokens":5,"cached_tokens":99999999999}`, usage{-1, -1, -1}},                                                                                                                              // cut off before, and no number of tokens
		{`{"usage":{"prompt_tokens":25,"completion_tokens":8},"prompt_token_ids":[` + strings.Repeat("1234567, ", 5000) + `1]}`, usage{25, 8, -1}},                                                       // with return_token_ids
		{`{"tools":[{"output_tokens":0}],"usage":{"input_tokens":25,"output_tokens":8},"user":"` + strings.Repeat("u", 9000) + `","metadata":{"output_tokens":"x","input_tokens":0}}`, usage{25, 8, -1}}, // with what the client wrote
		{`data: {"message":{"usage":{"input_tokens":25,"output_tokens":1}}}` + "\n\n" + strings.Repeat("data: {}\n\n", 2000) + `data: {"usage":{"output_tokens":8}}`, usage{25, 8, -1}},
	} {
		for _, size := range []int{1, 7, 63, 64, 65, 1000, len(c.tail) + 1} {
			s := spoken{sum: noCounts()}
			for part := range slices.Chunk([]byte(c.tail), size) {
				s.see(part)
			}
			if got := s.sum.all(); got != c.want {
				t.Errorf("%.200s in parts of %d: %+v, want %+v", c.tail, size, got, c.want)
			}
		}
	}
}

// What was generated says nothing of tokens, where it is no text either: /v1/messages has arguments of a tool's call as an object.
func TestWhatWasGeneratedIsNoUsage(t *testing.T) {
	const forged = `"output_tokens":2147483647,"completion_tokens":2147483647,"cached_tokens":1`
	for answer, want := range map[string]usage{
		`{"content":[{"type":"text","text":"\\\"]} \\\\\"[{"},{"type":"tool_use","name":"f","input":{"usage":{` + forged + `},"a":["]",{` + forged + `}]}}],"usage":{"input_tokens":25,"output_tokens":8}}`: {25, 8, -1},
		`{"usage":{"cache_read_input_tokens":16,"input_tokens":25,"output_tokens":8},"content":[{"type":"tool_use","input":{` + forged + `}}]}`:                                                             {41, 8, 16},
		`{"a":[],"b":[[],[]],"c":"[","usage":{"prompt_tokens":25,"prompt_tokens_details":{"cached_tokens":16},"completion_tokens":8},"d":[{` + forged + `}`:                                                 {25, 8, 16},
		`]}{"usage":{"prompt_tokens":25,"completion_tokens":8}}`: {25, 8, -1},
	} {
		for _, size := range []int{1, 2, 7, 63, 64, 65, len(answer)} {
			s := spoken{sum: noCounts()}
			for part := range slices.Chunk([]byte(answer), size) {
				s.seeWhole(part)
			}
			if got := s.sum.all(); got != want {
				t.Errorf("%s in parts of %d: %+v, want %+v", answer, size, got, want)
			}
		}
	}
}

// BenchmarkSpokenWhole is per answer of 4 KiB of text, or of as many numbers.
func BenchmarkSpokenWhole(b *testing.B) {
	for name, answer := range map[string]string{
		"text": `{"choices":[{"text":"` + strings.Repeat("some words ", 372) + `"}],"usage":{"prompt_tokens":25,"completion_tokens":8}}`,
		"ids":  `{"choices":[{"token_ids":[` + strings.Repeat("12345,", 682) + `1]}],"usage":{"prompt_tokens":25,"completion_tokens":8}}`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := spoken{sum: noCounts()}
				s.seeWhole([]byte(answer))
			}
		})
	}
}

// Of a list of answers all count, wherever the answer is cut into parts, and however long
// their texts are.
func TestUsageOfLists(t *testing.T) {
	element := func(text string) string {
		return `{"text":"` + text + `","meta_info":{"id":"x","prompt_tokens":123,"completion_tokens": 45,"cached_tokens":16,"e2e_latency":0.5}}`
	}
	answer := []byte("[" + element("a") + ", " + element(strings.Repeat(`\"prompt_tokens\":7 `, 1000)) + "," + element("") + "]")
	for _, size := range []int{1, 7, 63, 64, 65, 1000, len(answer)} {
		l := &listed{sum: noCounts()}
		for part := range slices.Chunk(answer, size) {
			l.see(part)
			if len(l.rest) > longestUsage {
				t.Fatalf("%d bytes are kept", len(l.rest))
			}
		}
		if got := l.end(); got != (usage{369, 135, 48}) {
			t.Errorf("in parts of %d: %+v", size, got)
		}
	}
}
