package httpconf

import (
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// Limits is where a server listens, and what one client and all of them together
// may make it hold.
type Limits struct {
	Listen           string        // host:port; port 0 takes a free one
	MaxBody          int64         // bytes of a request's body
	MaxHeader        int64         // bytes of a request's line and headers
	ReadTimeout      time.Duration // for a request's header and body together
	WriteTimeout     time.Duration // for an answer, or for each part of a streamed one
	IdleTimeout      time.Duration // between requests of a connection
	MaxConnections   int
	MaxConnectionsIP int // of one client address
	MaxInflight      int // requests that are answered at once
}

// Declare adds the settings to the set, with the defaults of the program.
func (l *Limits) Declare(set *conf.Set, d Limits) {
	set.String(&l.Listen, "http-listen", d.Listen, `Address of the HTTP server, as host:port. Port 0 takes a
		free one, which the log and --address-file name.`)
	set.Bytes(&l.MaxBody, "http-max-body", d.MaxBody, `Largest body of a request. 1MiB takes prompts of about 130,000
		token ids or 50,000 hashes; 8MiB takes a million token ids.`, conf.Between[int64](1<<10, 1<<30))
	set.Bytes(&l.MaxHeader, "http-max-header", d.MaxHeader, "Largest request line and headers together.",
		conf.Between[int64](1<<10, 1<<20))
	set.Duration(&l.ReadTimeout, "http-read-timeout", d.ReadTimeout, "Time in which a request must arrive whole.",
		conf.Between(time.Millisecond, time.Hour))
	set.Duration(&l.WriteTimeout, "http-write-timeout", d.WriteTimeout, `Time in which a client must take its answer, or each
		chunk of one that is streamed.`, conf.Between(time.Millisecond, time.Hour))
	set.Duration(&l.IdleTimeout, "http-idle-timeout", d.IdleTimeout, "Time after which an idle connection is closed.",
		conf.Between(time.Millisecond, 24*time.Hour))
	set.Int(&l.MaxConnections, "http-max-connections", d.MaxConnections, "Most connections at once; more are refused.",
		conf.Between(1, 1<<24))
	set.Int(&l.MaxConnectionsIP, "http-max-connections-per-ip", d.MaxConnectionsIP, `Most connections at once from one address
		(IPv6: from one /64 network); more are refused. Gateways have one address.`, conf.Between(1, 1<<24))
	set.Int(&l.MaxInflight, "http-max-inflight", d.MaxInflight, "Most requests that are being answered at once; more are refused.",
		conf.Between(1, 1<<24))
}
