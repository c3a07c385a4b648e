package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestIngestPrintsOneLineAndLosesNothing(t *testing.T) {
	for _, mode := range []string{"jetstream", "core"} {
		var out, stderr strings.Builder
		code := run([]string{"ingest", "--mode", mode, "--seconds", "0.2", "--publishers", "2", "--batch", "8", "--chains", "50", "--stream-mib", "256"}, &out, &stderr)
		if code != 0 {
			t.Fatalf("%s: exit %d: %s", mode, code, stderr.String())
		}
		var r ingestResult
		if err := json.Unmarshal([]byte(out.String()), &r); err != nil || strings.Count(out.String(), "\n") != 1 {
			t.Fatalf("%s: %q: %v", mode, out.String(), err)
		}
		if r.Mode != mode || r.Lost != 0 || r.Gaps != 0 || r.BlocksPerS <= 0 || r.FloorBlocksPS <= 0 || r.Probes > 0 && r.VisibleP50 <= 0 || r.FloorP50 <= 0 || r.FloorP99 < r.FloorP50 {
			t.Errorf("%+v", r)
		}
	}
}

func TestIngestRefusesAWrongCommandLine(t *testing.T) {
	for _, args := range []string{"--mode file", "--publishers 0", "--seconds -1", "--rate -1", "rest"} {
		var out, stderr strings.Builder
		if code := run(append([]string{"ingest"}, strings.Fields(args)...), &out, &stderr); code != 2 || out.Len() > 0 {
			t.Errorf("%s: exit %d: %s", args, code, stderr.String())
		}
	}
}

func TestIngestKeepsToItsRate(t *testing.T) {
	var out, stderr strings.Builder
	if code := run(strings.Fields("ingest --mode core --seconds 0.2 --publishers 2 --batch 1 --chains 50 --rate 6400"), &out, &stderr); code != 0 {
		t.Fatalf("exit %d: %s", code, stderr.String())
	}
	var r ingestResult
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		t.Fatal(err)
	}
	// Each publisher may have begun a few events early when the time is over.
	if most := 6400 + 2*4*blocksPerEvent/0.2; r.HalfBlocksPerS <= 0 || r.HalfBlocksPerS > most {
		t.Errorf("%.0f blocks/s, want at most %.0f", r.HalfBlocksPerS, most)
	}
}
