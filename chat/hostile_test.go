package chat_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/internal/testing/clocktest"
)

// many are n values of JSON with commas between.
func many(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = format
		if strings.Contains(format, "%") {
			list[i] = fmt.Sprintf(format, i)
		}
	}
	return strings.Join(list, ",")
}

func withTool(parameters string) string {
	return `{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":` + parameters + `}}]}`
}

// TestLongRequests writes requests of many of one thing: ten times as many take about ten times as long.
func TestLongRequests(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, c := range []struct {
		name string
		cfg  chat.Config
		body func(n int) string
	}{
		{"required", chat.Config{Encoder: chat.Harmony}, func(n int) string {
			return withTool(`{"type":"object","required":[` + many(n, `"r%d"`) + `],"properties":{` + many(n, `"p%d":0`) + `}}`)
		}},
		{"types", chat.Config{Engine: chat.SGLang, Template: "{{ messages[0].content }}"}, func(n int) string {
			return withTool(`{"type":[` + many(n, `%d`) + `]}`)
		}},
		{"results", chat.Config{Encoder: chat.DeepSeekV32}, func(n int) string {
			return `{"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[` + many(n, `{"id":"","type":"function","function":{"name":"a","arguments":"{}"}}`) +
				`]},` + many(n, `{"role":"tool","tool_call_id":"","content":""}`) + `]}`
		}},
		{"parts", chat.Config{Encoder: chat.Harmony}, func(n int) string {
			long := strings.Repeat("x", 100*n)
			return `{"messages":[{"role":"user","content":[{"type":"text","text":"` + long + `"},` + many(n, `{"type":"text","text":"x"}`) + `]}]}`
		}},
	} {
		m, err := chat.New(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		took := func(body string) time.Duration {
			begun := clocktest.Thread()
			if _, err := m.Prompt(context.Background(), body, nil); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			return clocktest.Thread() - begun
		}
		// The thread's own time, which nobody else takes, and the least of some runs. Quadratic
		// ones take a hundred times as long, however often.
		short, long := c.body(1000), c.body(10_000)
		few, lots := took(short), took(long)
		for range 20 {
			if lots <= 40*few+20*time.Millisecond {
				break
			}
			few, lots = min(few, took(short)), min(lots, took(long))
		}
		if lots > 40*few+20*time.Millisecond {
			t.Errorf("%s: ten times as many take %v, not %v", c.name, lots, 10*few)
		}
	}
}

// TestDeepSchemas holds that the types of nested parameters, whose every line is indented, take no more than is theirs.
func TestDeepSchemas(t *testing.T) {
	m, err := chat.New(chat.Config{Encoder: chat.Harmony})
	if err != nil {
		t.Fatal(err)
	}
	s := `{"type":"object","properties":{` + many(100_000, `"%d":0`) + `}}`
	for range 80 {
		s = `{"type":"object","properties":{"a":` + s + `}}`
	}
	p, err := m.Prompt(context.Background(), withTool(s), nil)
	var limit *jinja.LimitError
	if !errors.As(err, &limit) {
		t.Errorf("%d bytes make %d, %v", len(s), len(p.Text), err)
	}
}
