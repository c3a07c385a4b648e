package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLab runs the command for all default policies: a row each with every
// figure, the same bytes each time.
func TestLab(t *testing.T) {
	args := []string{"lab", "--workload", "zipf", "--requests", "60", "--rate", "8", "--workers", "2", "--json", "-", "--sweep", "event-delay=0,1s"}
	var first string
	for range 2 {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != 0 {
			t.Fatalf("code %d: %s", code, errs.String())
		}
		if first == "" {
			first = out.String()
		}
		if out.String() != first {
			t.Fatalf("other bytes the second time:\n%s%s", first, out.String())
		}
	}
	lines := strings.Split(strings.TrimSpace(first), "\n")
	if want := 2 * (strings.Count(labPolicies, ",") + 1); len(lines) != want {
		t.Fatalf("%d rows, want %d", len(lines), want)
	}
	for _, line := range lines {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{
			"ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms", "e2e_p99_ms",
			"output_tokens_per_s", "load_max_over_mean", "events", "seconds", "reuse",
		} {
			if v, ok := row[key].(float64); !ok || v <= 0 {
				t.Errorf("%s is %v in %s", key, row[key], line)
			}
		}
	}
}

// TestLabSeeds: a row of several seeds has the means of the rows of each, the
// same bytes each time, and says how far apart they are.
func TestLabSeeds(t *testing.T) {
	args := []string{"lab", "--workload", "zipf", "--requests", "60", "--rate", "8", "--workers", "2", "--quiet", "--ttft-target", "60ms", "--json", "-", "--policy", "auto"}
	rows := func(more ...string) (rows []labRow, text string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := run(append(args, more...), &out, &errs); code != 0 {
			t.Fatalf("code %d: %s", code, errs.String())
		}
		text = out.String()
		for d := json.NewDecoder(&out); d.More(); {
			var row labRow
			if err := d.Decode(&row); err != nil {
				t.Fatal(err)
			}
			rows = append(rows, row)
		}
		return rows, text
	}
	got, text := rows("--seed", "4", "--seeds", "3")
	if _, again := rows("--seed", "4", "--seeds", "3"); again != text {
		t.Errorf("other bytes the second time:\n%s%s", text, again)
	}
	each, _ := rows("--sweep", "seed=4,5,6")
	if len(got) != 1 || len(each) != 3 || got[0].Seeds != 3 {
		t.Fatalf("%d rows of %d seeds, and %d of one", len(got), got[0].Seeds, len(each))
	}
	for _, f := range figures() {
		a, b, c := *f.of(&each[0]), *f.of(&each[1]), *f.of(&each[2])
		if mean := (a + b + c) / 3; math.Abs(*f.of(&got[0])-mean) > 0.01*mean {
			t.Errorf("%s is %v, want %v", f.name, *f.of(&got[0]), mean)
		}
		if s := got[0].Spread[f.name]; s != [2]float64{min(a, b, c), max(a, b, c)} {
			t.Errorf("%s spreads over %v, want %v, %v, %v", f.name, s, a, b, c)
		}
	}
	var out, errs bytes.Buffer
	args = append(args[:len(args)-4], "--policy", "auto", "--seeds", "2")
	if code := run(args, &out, &errs); code != 0 || !strings.Contains(out.String(), " 2 seeds: ttft mean ") {
		t.Errorf("code %d, %s%s", code, out.String(), errs.String())
	}
}

// TestLabTrace: a trace file, workers that are slow, die and join, and a table.
func TestLabTrace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.jsonl")
	var b strings.Builder
	for range 20 {
		b.WriteString(`{"timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [0, 1, 2]}` + "\n")
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	page := filepath.Join(t.TempDir(), "report.html")
	args := []string{"lab", "--trace", file, "--html", page, "--policy", "kv-weight-2,dynamo-scale-4,random", "--workers", "4", "--slow", "1:3", "--die", "0:10ms", "--join", "2:5ms",
		"--plot", filepath.Join(t.TempDir(), "plot.svg")}
	if code := run(args, &out, &errs); code != 0 {
		t.Fatalf("code %d: %s", code, errs.String())
	}
	if strings.Count(out.String(), "\n") != 4 || !strings.Contains(out.String(), "dynamo-scale-4") || !strings.Contains(errs.String(), "20 requests") {
		t.Errorf("table:\n%s%s", out.String(), errs.String())
	}
	svg, err := os.ReadFile(args[len(args)-1])
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), string(svg)) || strings.Count(string(text), "<tr>") != 4 ||
		strings.Contains(string(text), "src=") || strings.Contains(string(text), "<script") || strings.Contains(string(text), "<link") {
		t.Errorf("the report is no page of its own with the same pictures: %v\n%s", err, text)
	}
	decoder, circles := xml.NewDecoder(bytes.NewReader(svg)), 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the plot is no XML: %v\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			circles++
		}
	}
	if circles != 3 || !strings.Contains(string(svg), "random: requests on a worker") || strings.Contains(string(svg), "NaN") {
		t.Errorf("%d points in the plot, want 3:\n%s", circles, svg)
	}
}

// TestLabRefuses: what cannot be run is refused, with a word on standard error.
func TestLabRefuses(t *testing.T) {
	for _, c := range []struct {
		code int
		args string
	}{
		{2, ""}, {2, "--trace x --workload zipf"}, {2, "--workload zipf extra"}, {2, "--no-such-flag"}, {2, "--workload zipf --seeds 0"},
		{1, "--workload none"}, {1, "--trace /nowhere"}, {1, "--workload zipf --policy best"},
		{1, "--workload zipf --policy dynamo-scale-x"}, {1, "--workload zipf --slow 1"}, {1, "--workload zipf --slow 1:x"},
		{1, "--workload zipf --die x:1s"}, {1, "--workload zipf --sweep sweep=1"}, {1, "--workload zipf --sweep workers"},
		{1, "--workload zipf --sweep workers=x"}, {1, "--workload zipf --json /nowhere/x"},
		{1, "--workload zipf --ttft-target -1s"}, {1, "--workload zipf --policy bound-fcfs --itl-target -1ns"},
	} {
		var out, errs bytes.Buffer
		if code := run(append([]string{"lab"}, strings.Fields(c.args)...), &out, &errs); code != c.code || errs.Len() == 0 {
			t.Errorf("%q: code %d, want %d; %s", c.args, code, c.code, errs.String())
		}
	}
}

// TestLabTargets: a row says what part of the requests kept the targets, where there are any: also none
// of them, and all of them where the target is out of reach.
func TestLabTargets(t *testing.T) {
	for flags, want := range map[string]string{
		"":                            "",
		"--ttft-target 1ns":           " 0.00 % within targets",
		"--itl-target 2540400h":       " 100.00 % within targets",
		"--ttft-target 1ns --seeds 2": " 0.00 % within targets",
	} {
		var out, errs bytes.Buffer
		args := strings.Fields("lab --workload zipf --requests 20 --workers 2 --quiet --policy auto " + flags)
		if code := run(args, &out, &errs); code != 0 || strings.Contains(out.String(), "within") != (want != "") || !strings.Contains(out.String(), want) {
			t.Errorf("%q: code %d, %s%s", flags, code, out.String(), errs.String())
		}
		out.Reset()
		if code := run(append(args, "--json", "-"), &out, &errs); code != 0 || strings.Contains(out.String(), `"within":`) != (want != "") {
			t.Errorf("%q: code %d, %s%s", flags, code, out.String(), errs.String())
		}
	}
}
