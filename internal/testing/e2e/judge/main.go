// Command judge compares the answers of an index with those of the oracle, fed
// with the events that a kvmocker of the same settings recorded.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/kvatlas/kvatlas/bench/mocker"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/testing/e2e"
)

func main() {
	var fleet mocker.Config
	var url, record string
	var log obs.LogConfig
	set := conf.New("judge", "Compares an index with the oracle.")
	fleet.Declare(set)
	set.Group("Judge")
	set.String(&url, "url", "http://127.0.0.1:8090", "Address of the index.")
	set.String(&record, "record", "", "File that kvmocker wrote with --events-out.")
	log.Declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &log, Run: func(ctx context.Context, _ *slog.Logger) error {
		v, err := e2e.Judge(ctx, &fleet, record, url)
		if err != nil {
			return err
		}
		line, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode the verdict: %w", err)
		}
		fmt.Println(string(line))
		if v.Differences > 0 {
			return fmt.Errorf("%d answers differ; the first: %s", v.Differences, v.First)
		}
		return nil
	}}))
}
