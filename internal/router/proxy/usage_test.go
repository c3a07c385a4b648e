package proxy

import "testing"

func TestUsageIsReadFromAnAnswersEnd(t *testing.T) {
	for _, c := range []struct {
		tail string
		want usage
	}{
		{``, usage{-1, -1, -1}},
		{`{"usage":{"prompt_tokens":25,"completion_tokens": 8,"prompt_tokens_details":{"cached_tokens":16}}}`, usage{25, 8, 16}},
		{`{"completion_tokens":1,"prompt_tokens":2}` + "\n\n" + `{"completion_tokens":3}`, usage{2, 3, -1}}, // the last one counts
		{`{"text":"\"prompt_tokens\":7","cached_tokens":null,"total_tokens":9}`, usage{-1, -1, -1}},
		{`"completion_tokens":`, usage{-1, -1, -1}},
		{`{"usage":{"input_tokens":25,"input_tokens_details":{"cached_tokens":16},"output_tokens":8,"total_tokens":33}}`, usage{25, 8, 16}}, // /v1/responses
		{`{"usage":{"cache_read_input_tokens":16,"input_tokens":25,"max_output_tokens":900,"output_tokens":8}}`, usage{25, 8, -1}},          // /v1/messages
		{`rompt_tokens":5,"cached_tokens":99999999999}`, usage{-1, -1, -1}},                                                                 // cut off before, and no number of tokens
	} {
		if got := usageIn([]byte(c.tail)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.tail, got, c.want)
		}
	}
}
