package keeper

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// Settings are the settings of a Keeper as programs declare them.
type Settings struct {
	Off      bool   // neither take snapshots nor start from one
	Dir      string // as those of Config, as are Keep, Interval and Lease
	Keep     int
	Messages int // Config.Threshold
	Interval time.Duration
	Lease    time.Duration
	Memory   int64 // bytes of a snapshot on its way: Config.Options.MaxBuffered
	Reset    bool  // purge the streams and delete the snapshots first, at each start

	Peer      string      // URL of a kvindexer, or of a kvrouter's admin port, to start from
	PeerFirst bool        // rather than from snapshots
	PeerToken string      // file with an operator's token
	PeerTLS   secure.Dial // files of TLS
}

// Declare adds the settings to the set.
func (s *Settings) Declare(set *conf.Set) {
	set.Group("Snapshots")
	set.Bool(&s.Off, "no-snapshots", false, `Neither take snapshots nor start from one. The streams then grow until their own limits,
		and a start reads all of them.`)
	set.String(&s.Dir, "snapshot-dir", "", `Directory for snapshots, where the object store of NATS is not to hold them. Replicas that
		are to start from each other's snapshots need the same one.`, conf.ShowDefault("the object store of NATS"))
	set.Int(&s.Keep, "snapshot-keep", 3, `Snapshots kept of each stream. The stream keeps what follows the oldest.`, conf.Between(2, 100))
	set.Int(&s.Messages, "snapshot-threshold", 1_000_000, `Messages of a stream after which the next snapshot is due. It is due
		sooner where a start would take longer for those than for the snapshot: with a message for each 100 of its blocks, but
		at least 50,000, and after five times as long as the last one took.`, conf.Between(1, math.MaxInt32))
	set.Duration(&s.Interval, "snapshot-interval", 15*time.Minute, `Time after which the next snapshot is due, if anything has changed. More than
		half of a stream's retention is refused.`, conf.Between(100*time.Millisecond, 24*time.Hour))
	set.Duration(&s.Lease, "snapshot-lease", 15*time.Second, `How long a replica that takes a snapshot may be silent before another takes
		over.`, conf.Between(100*time.Millisecond, time.Hour))
	set.Bytes(&s.Memory, "snapshot-memory", 128<<20, `Most memory for a snapshot on its way. A snapshot that needs more because the
		storage is too slow is given up, and tried again later.`, conf.Between[int64](4<<20, 1<<40))
	set.Bool(&s.Reset, "reset-states", false, `Begin anew: purge the streams and delete the snapshots of the namespace. Refused while
		another replica lives. kvctl reset does it once; with this every start of the process does.`)
	set.String(&s.Peer, "restore-from", "", `URL of a kvindexer of the same namespace, or of the admin port of a kvrouter, http://host:port or https://host:port, from which a start
		takes what it knows of the streams that no snapshot can be used for. If it does not give that, the streams are read from their beginning.`)
	set.Bool(&s.PeerFirst, "restore-from-first", false, "Ask it for all streams, and start from snapshots only where it does not give them.")
	set.String(&s.PeerToken, "restore-from-token-file", "", "File with the bearer token that it asks for: one of an operator.")
	set.String(&s.PeerTLS.CA, "restore-from-ca", "", "File with the certificates, in PEM, that its own is checked against.",
		conf.ShowDefault("the authorities of the system"))
	set.String(&s.PeerTLS.Cert, "restore-from-cert", "", "PEM file of the certificate that it is shown, if it wants one; needs --restore-from-key.")
	set.String(&s.PeerTLS.Key, "restore-from-key", "", "PEM file of that certificate's key; needs --restore-from-cert.")
}

// Apply brings the settings into cfg.
func (s *Settings) Apply(cfg *Config) {
	cfg.Dir, cfg.Keep, cfg.Threshold, cfg.Interval = s.Dir, s.Keep, uint64(max(0, s.Messages)), s.Interval
	cfg.Lease, cfg.Options.MaxBuffered = s.Lease, s.Memory
}

// Start does what the settings say for a program that is about to read: it
// resets, and restores the newest snapshots, or copies what a peer knows. It returns
// where to start reading. The Keeper is nil where there are to be no snapshots.
func (s *Settings) Start(ctx context.Context, cfg Config) (*Keeper, map[string]ingest.Start, error) {
	source, err := s.source(&cfg)
	if err != nil {
		return nil, nil, err
	}
	defer source.Close()
	if s.Off && !s.Reset {
		starts, err := copyAll(ctx, &cfg, source, nil)
		return nil, starts, err
	}
	s.Apply(&cfg)
	k, err := Open(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; --no-snapshots does without", err)
	}
	if s.Reset {
		k.cfg.Log.Warn("--reset-states: what the streams and snapshots of the namespace hold is deleted; leave the setting off at the next start")
		if err := k.Reset(ctx, false); err != nil {
			return nil, nil, err
		}
	}
	if s.Off {
		return nil, nil, nil
	}
	k.checkDir()
	if err := k.CheckRetention(ctx); err != nil {
		return nil, nil, err
	}
	var starts map[string]ingest.Start
	if s.PeerFirst {
		if starts, err = copyAll(ctx, &cfg, source, nil); err != nil {
			return nil, nil, err
		}
	}
	restored, err := k.restoreAll(ctx, starts)
	if err != nil {
		return nil, nil, err
	}
	if !s.PeerFirst {
		starts, err = copyAll(ctx, &cfg, source, restored)
	}
	for name, start := range starts {
		restored[name] = start
	}
	return k, restored, err
}

// checkDir says so if no snapshot can be written where they are to be, long before the first is
// due. It keeps nobody from serving.
func (k *Keeper) checkDir() {
	if k.cfg.Dir == "" {
		return
	}
	if err := store.CheckDir(k.cfg.Dir); err != nil {
		k.m.failed(reason(err))
		k.cfg.Log.Error("there will be no snapshots, and the streams grow to their limits: give --snapshot-dir a directory that can be written, or --no-snapshots", "error", err)
	}
}
