package main

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestSnapshotMeasures(t *testing.T) {
	for _, args := range [][]string{{}, {"--chained"}} {
		var out, errs bytes.Buffer
		args = append([]string{"snapshot", "--blocks=20000", "--workers=16", "--dir", t.TempDir()}, args...)
		if code := run(args, &out, &errs); code != 0 {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		var r snapshotResult
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		limit := 17.5
		if len(args) > 4 && args[len(args)-1] == "--chained" {
			limit = 9.5
		}
		if !r.DigestEqual || r.Blocks < 20000 || r.WriteS <= 0 || r.RestoreS <= 0 || r.FloorRestoreS <= 0 || r.BytesPerBlock > limit {
			t.Errorf("%v: %+v", args, r)
		}
	}
	var out, errs bytes.Buffer
	if code := run([]string{"snapshot", "--blocks=0"}, &out, &errs); code != 2 {
		t.Errorf("exit code %d for no blocks", code)
	}
}
