package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/route"
)

// TestSelect runs the command for every mode: one line with every figure, in
// an order that can be.
func TestSelect(t *testing.T) {
	for _, mode := range route.Modes() {
		for _, book := range []string{"--book=false", "--book"} {
			var out, errs bytes.Buffer
			args := []string{"select", "--workers", "5", "--blocks", "16", "--mode", mode, "--warm", "1ms", "--measure", "5ms", book}
			if code := run(args, &out, &errs); code != 0 {
				t.Fatalf("%v: code %d: %s", args, code, errs.String())
			}
			var res map[string]any
			if err := json.Unmarshal(out.Bytes(), &res); err != nil || strings.Count(out.String(), "\n") != 1 {
				t.Fatalf("%v: %v: %s", args, err, out.String())
			}
			for _, key := range []string{"select_us_mean", "select_us_p50", "select_us_p99", "lookup_us_mean", "choices"} {
				if v, ok := res[key].(float64); !ok || v <= 0 {
					t.Errorf("%v: %s is %v", args, key, res[key])
				}
			}
			if res["select_us_p50"].(float64) > res["select_us_p99"].(float64) || res["workers"] != 5.0 || res["blocks"] != 16.0 {
				t.Errorf("%v: %v", args, res)
			}
		}
	}
	for _, args := range [][]string{{"--workers", "0"}, {"--blocks", "2"}, {"extra"}, {"--no-such-flag"}} {
		var out, errs bytes.Buffer
		if code := run(append([]string{"select"}, args...), &out, &errs); code != 2 || errs.Len() == 0 {
			t.Errorf("%v: code %d, %q", args, code, errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"select", "--mode", "best", "--warm", "1ms", "--measure", "1ms"}, &out, &errs); code != 1 || !strings.Contains(errs.String(), "mode") {
		t.Errorf("an unknown mode: code %d, %q", code, errs.String())
	}
}
