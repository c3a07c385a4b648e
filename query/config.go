package query

import (
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// Config holds the settings of a Server. fasthttp leaves most of these limits
// off unless they are set.
type Config struct {
	Listen             string        // host:port; port 0 takes a free one
	MaxBody            int64         // bytes of a request's body
	MaxHeader          int64         // bytes of a request's line and headers
	MaxTokens          int           // elements of token_ids or hashes
	ReadTimeout        time.Duration // for a request's header and body together
	WriteTimeout       time.Duration // for an answer
	IdleTimeout        time.Duration // between requests of a connection
	MaxConnections     int
	MaxInflight        int           // requests that are answered at once
	MaxConnectionsIP   int           // of one client address
	MaxRequestsPerConn int           // then the connection is closed
	MaxBatch           int           // requests of a batch
	MaxDumps           int           // that are answered at once
	MaxDecompressed    int64         // bytes of a body without its compression
	SlowQuery          time.Duration // log what takes longer; 0: nothing
}

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	set.Group("HTTP")
	set.String(&c.Listen, "http-listen", "127.0.0.1:8090", `Address of the HTTP server, as host:port. Port 0 takes a
		free one, which the log and --address-file name.`)
	set.Bytes(&c.MaxBody, "http-max-body", 1<<20, `Largest body of a request. 1MiB takes prompts of about 130,000
		token ids or 50,000 hashes; 8MiB takes a million token ids. The worst that slow clients can make the server hold
		is this times --http-max-connections.`, conf.Between[int64](1<<10, 1<<30))
	set.Int(&c.MaxTokens, "http-max-tokens", 1<<20, "Most elements of token_ids, or of hashes, in a request.",
		conf.Between(1, 1<<28))
	set.Int(&c.MaxBatch, "http-max-batch", 256, "Most requests in a batch.", conf.Between(1, 1<<16))
	set.Int(&c.MaxDumps, "http-max-dumps", 1, `Most dumps at once; more are refused with 503. Each has one rank in memory.`, conf.Between(1, 1<<10))
	set.Bytes(&c.MaxDecompressed, "http-max-decompressed", 4<<20, `Largest body without its compression (gzip or zstd). At most
		--http-max-inflight of them are in memory at once.`, conf.Between[int64](1<<10, 1<<30))
	set.Bytes(&c.MaxHeader, "http-max-header", 8<<10, "Largest request line and headers together.",
		conf.Between[int64](1<<10, 1<<20))
	set.Duration(&c.ReadTimeout, "http-read-timeout", 10*time.Second, "Time in which a request must arrive whole.",
		conf.Between(time.Millisecond, time.Hour))
	set.Duration(&c.WriteTimeout, "http-write-timeout", 10*time.Second, "Time in which a client must take its answer.",
		conf.Between(time.Millisecond, time.Hour))
	set.Duration(&c.IdleTimeout, "http-idle-timeout", time.Minute, "Time after which an idle connection is closed.",
		conf.Between(time.Millisecond, 24*time.Hour))
	set.Int(&c.MaxConnections, "http-max-connections", 1024, "Most connections at once; more are refused with 503.",
		conf.Between(1, 1<<20))
	set.Int(&c.MaxInflight, "http-max-inflight", 128, `Most requests that are being answered at once; more are refused with
		503.`, conf.Between(1, 1<<20))
	set.Int(&c.MaxConnectionsIP, "http-max-connections-per-ip", 512, `Most connections at once from one address (IPv6:
		from one /64 network); more are refused with 429.`, conf.Between(1, 1<<20))
	set.Int(&c.MaxRequestsPerConn, "http-max-requests-per-connection", 1_000_000,
		"Requests after which a connection is closed, so that clients spread anew over replicas.",
		conf.Between(1, 1<<30))
	set.Duration(&c.SlowQuery, "http-slow-query", 0, `Log requests that take longer than this from their arrival to their
		answer, one a second at most. 0s logs none.`)
}
