package query

import (
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/httpconf"
)

// Config holds the settings of a Server. fasthttp leaves most of these limits
// off unless they are set.
type Config struct {
	httpconf.Limits
	MaxTokens          int           // elements of token_ids or hashes
	MaxRequestsPerConn int           // then the connection is closed
	MaxBatch           int           // requests of a batch
	MaxDumps           int           // that are answered at once
	MaxDecompressed    int64         // bytes of a body without its compression
	SlowQuery          time.Duration // log what takes longer; 0: nothing
}

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	set.Group("HTTP")
	// The worst that slow clients can make the server hold is MaxBody for each of
	// MaxConnections.
	c.Limits.Declare(set, httpconf.Limits{
		Listen: "127.0.0.1:8090", MaxBody: 1 << 20, MaxHeader: 8 << 10,
		ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxConnections: 1024, MaxConnectionsIP: 512, MaxInflight: 128,
	})
	set.Int(&c.MaxTokens, "http-max-tokens", 1<<20, "Most elements of token_ids, or of hashes, in a request.",
		conf.Between(1, 1<<28))
	set.Int(&c.MaxBatch, "http-max-batch", 256, "Most requests in a batch.", conf.Between(1, 1<<16))
	set.Int(&c.MaxDumps, "http-max-dumps", 1, `Most dumps at once; more are refused with 503. Each has one rank in memory.`, conf.Between(1, 1<<10))
	set.Bytes(&c.MaxDecompressed, "http-max-decompressed", 4<<20, `Largest body without its compression (gzip or zstd). At most
		--http-max-inflight of them are in memory at once.`, conf.Between[int64](1<<10, 1<<30))
	set.Int(&c.MaxRequestsPerConn, "http-max-requests-per-connection", 1_000_000,
		"Requests after which a connection is closed, so that clients spread anew over replicas.",
		conf.Between(1, 1<<30))
	set.Duration(&c.SlowQuery, "http-slow-query", 0, `Log requests that take longer than this from their arrival to their
		answer, one a second at most. 0s logs none.`)
}
