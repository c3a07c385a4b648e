package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestLabTable: what is asked for is run once and kept, again only where that is asked for, and
// the page has a row of each with the verdict of what is there.
func TestLabTable(t *testing.T) {
	racetest.Without(t, "one goroutine runs a fleet")
	dir := t.TempDir()
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": 1100, "output_length": 5, "hash_ids": [%d, 1, 2], "session_id": "s%d"}`+"\n", 100*i, i%3, i%4)
	}
	for _, name := range []string{"conversation.jsonl.zst", "agentic.jsonl.zst"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	page := filepath.Join(dir, "page.md")
	call := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"labtable", "--traces", dir, "--state", filepath.Join(dir, "state"), "--out", page, "--seeds", "2"}, args...)
		if code := run(args, &out, &errs); code != 0 {
			t.Fatalf("%v: code %d: %s", args, code, errs.String())
		}
		return out.String()
	}
	settings := labSettings()
	only := []string{"--only", "^(Conv|Agents|Robust)"}
	want := 0
	for _, s := range settings {
		if s.group != generated && s.group != agentic {
			want += 1 + strings.Count(s.rows, ",")
		}
	}
	if got := strings.Count(call(only...), "\n"); got != want {
		t.Errorf("%d rows were run, want %d", got, want)
	}
	if out := call(only...); out != "" {
		t.Errorf("run again though it was done:\n%s", out)
	}
	first, err := os.ReadFile(page) //nolint:gosec // of this test
	if err != nil {
		t.Fatal(err)
	}
	again := call("--only", "^Conv", "--again", "auto", "--rows", "auto,smg")
	if strings.Count(again, "\n") != 9 || strings.Count(again, "/auto: ") != 9 {
		t.Errorf("of nine settings auto was to be run again, not:\n%s", again)
	}
	second, err := os.ReadFile(page) //nolint:gosec // of this test
	if err != nil || !bytes.Equal(first, second) {
		t.Errorf("another page: %v", err)
	}
	text := string(second)
	for _, line := range []string{
		"| conversation, 16 engines, ×4 | ", "| agents, 8 engines, ×1 | ", "## " + closedLoop, "| bound-wspt | ", "seeds: 2", "In the mean over 11 settings",
		"`--trace conversation.jsonl.zst --workers 4 --speedup 3`", "| 8 routers, 10 ms apart | ",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("the page lacks %q", line)
		}
	}
	if strings.Contains(text, "## "+generated) || strings.Contains(text, "## "+agentic) || strings.Contains(text, "NaN") || strings.Contains(text, dir) {
		t.Errorf("the page has what was not run:\n%s", text)
	}
	for _, args := range [][]string{nil, {"--traces", dir, "--only", "("}, {"--traces", "/nowhere", "--only", "^Conv"}} {
		var out, errs bytes.Buffer
		if code := run(append([]string{"labtable", "--state", filepath.Join(dir, "other"), "--out", filepath.Join(dir, "other.md")}, args...), &out, &errs); code == 0 || errs.Len() == 0 {
			t.Errorf("%v: code %d", args, code)
		}
	}
}
