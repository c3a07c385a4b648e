// Command kvdemo is what `make run` starts: kvindexer and a fleet of mock
// engines on this machine, a line a second about both, and requests to paste.
package main

import (
	"os"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
)

func main() {
	var d demo
	var log obs.LogConfig
	set := conf.New("kvdemo", "The indexer and a mock fleet on this machine, to look at.")
	set.Group("Demo")
	set.String(&d.trace, "trace", "", "Trace of requests to replay: JSON lines in Mooncake's format, plain or compressed with zstd. Without it, requests are generated.")
	set.Float(&d.speed, "speed", 0, `How many times faster than in the trace requests arrive and engines compute. 0 is 1 for generated requests and 10 for a
		trace.`, conf.Between[float64](0, 1e6))
	set.Int(&d.workers, "workers", 8, "Number of workers.", conf.Between(1, 1<<10))
	set.Int(&d.ranks, "dp-size", 2, "Data-parallel ranks of each worker.", conf.Between(1, 1<<6))
	set.Int(&d.blocks, "cache-blocks", 4096, "Blocks in the cache of an engine. Each has 16 tokens.", conf.Between(1, 1<<24))
	set.String(&d.listen, "http-listen", "127.0.0.1:8090", "Address of the HTTP server, as host:port. It is the indexer's; if it is taken, a free port instead.")
	set.String(&d.dataDir, "data-dir", "", `Directory of an embedded server's messages, address and credentials. Without it,
		a temporary one that is removed at the end.`)
	log.Declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &log, Run: d.run}))
}
