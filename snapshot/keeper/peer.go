package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/snapshot/peer"
)

// source returns the peer of the settings; nil if there is none.
func (s *Settings) source(cfg *Config) (*peer.Source, error) {
	if s.Peer == "" {
		if s.PeerFirst || s.PeerToken != "" || s.PeerTLS != (secure.Dial{}) {
			return nil, errors.New("--restore-from-first, -token-file, -ca, -cert and -key are about a peer: give --restore-from too")
		}
		return nil, nil
	}
	pc := peer.Config{URL: s.Peer, Progress: cfg.Progress, Log: cfg.Log}
	if s.PeerToken != "" {
		pc.Token = client.TokenFile(s.PeerToken)
	}
	settings, err := s.PeerTLS.Open(cfg.Log, "restore-from")
	if err != nil {
		return nil, err
	}
	if settings != nil {
		pc.TLS = settings.Get() // it is asked once, now
	}
	src, err := peer.New(pc)
	if err != nil {
		return nil, fmt.Errorf("--restore-from: %w", err)
	}
	return src, nil
}

// copyAll copies from the source what it knows of the namespace's streams, but
// for those that are in have. A nil source has nothing.
func copyAll(ctx context.Context, cfg *Config, source *peer.Source, have map[string]ingest.Start) (map[string]ingest.Start, error) {
	if source == nil {
		return nil, nil
	}
	js, err := jetstream.New(cfg.Conn)
	if err != nil {
		return nil, fmt.Errorf("copying from a peer: %w", err)
	}
	namespace := cfg.Namespace
	namespace = cmp.Or(namespace, "default")
	infos, err := stream.List(ctx, js, namespace)
	if err != nil && !errors.Is(err, stream.ErrUnsafe) {
		return nil, fmt.Errorf("copying from a peer: %w", err)
	}
	var missing []stream.Info
	for _, info := range infos {
		if _, ok := have[info.Name]; !ok && cfg.reads(&info) {
			missing = append(missing, info)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	return source.CopyAll(ctx, missing, cfg.Set)
}
