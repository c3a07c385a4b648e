package main

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
)

func read(t *testing.T, args ...string) (*config, error) {
	t.Helper()
	c := new(config)
	set := conf.New("kvrouter", "test")
	c.declare(set)
	if _, err := set.Run(args, nil, io.Discard); err != nil {
		return nil, err
	}
	return c, c.finish()
}

// Every setting that is the router's own reaches what it is a setting of, and
// its default is what the documents say.
func TestSettings(t *testing.T) {
	const m, s = time.Minute, time.Second
	type get = func(c *config) any
	for _, f := range []struct {
		name string
		get  get
		def  any
		text string
		val  any
	}{
		{"http-listen", func(c *config) any { return c.Proxy.Listen }, "127.0.0.1:8000", "[::1]:1", "[::1]:1"},
		{"address-file", func(c *config) any { return c.Service.AddressFile }, "", "f", "f"},
		{"drain-delay", func(c *config) any { return c.Service.DrainDelay }, 0 * s, "5s", 5 * s},
		{"stop-timeout", func(c *config) any { return c.Service.StopTimeout }, 5 * m, "5s", 5 * s},
		{"mode", func(c *config) any { return c.Route.Mode }, "auto", "kv", "kv"},
		{"overlap-weight", func(c *config) any { return c.Route.OverlapWeight }, 1.0, "2.5", 2.5},
		{"prefill-load-scale", func(c *config) any { return c.Route.PrefillLoadScale }, 1.0, "3", 3.0},
		{"temperature", func(c *config) any { return c.Route.Temperature }, 0.0, "0.5", 0.5},
		{"tier-credits", func(c *config) any { return c.Route.TierCredits }, [event.NumTiers]float64{1, 0.75, 0.25, 0}, "1,1,0,0.5", [event.NumTiers]float64{1, 1, 0, 0.5}},
		{"pool-credit", func(c *config) any { return c.Route.PoolCredit }, 0.5, "0.25", 0.25},
		{"stale-credit", func(c *config) any { return c.Route.StaleCredit }, 0.5, "0.25", 0.25},
		{"doubt", func(c *config) any { return c.Route.Doubt }, true, "false", false},
		{"device-ratio", func(c *config) any { return c.Route.DeviceRatio }, 8.0, "4", 4.0},
		{"track-active-blocks", func(c *config) any { return c.Route.TrackActiveBlocks }, true, "false", false},
		{"assume-kv-reuse", func(c *config) any { return c.Route.AssumeKVReuse }, true, "false", false},
		{"track-output-blocks", func(c *config) any { return c.Route.TrackOutputBlocks }, false, "true", true},
		{"booking-lease", func(c *config) any { return c.Route.Lease }, 5 * m, "1m", m},
		{"report-lifetime", func(c *config) any { return c.Route.ReportLifetime }, 30 * s, "1m", m},
		{"seed", func(c *config) any { return c.Route.Seed }, uint64(1), "9", uint64(9)},
		{"replica-sync", func(c *config) any { return c.ReplicaSync }, true, "false", false},
		{"tenants-every", func(c *config) any { return c.Quota.Every }, 100 * time.Millisecond, "1s", s},
		{"tenants-silent", func(c *config) any { return c.Quota.Silent }, 3 * s, "1s", s},
		{"tenants-forget", func(c *config) any { return c.Quota.Forget }, m, "1s", s},
		{"kv-events", func(c *config) any { return c.index() }, fleet.Events, "false", fleet.Approximate},
		{"ttl", func(c *config) any { return c.Approx.TTL }, 120 * s, "1m", m},
		{"tree-size", func(c *config) any { return c.Approx.MaxBlocks }, 1 << 20, "100", 100},
		{"prune-target", func(c *config) any { return c.Approx.PruneTarget }, 0.8, "0.5", 0.5},
		{"tokens", func(c *config) any { return c.Proxy.Tokens }, proxy.TokensEngine, "none", proxy.TokensNone},
		{"responses-memory", func(c *config) any { return c.Proxy.Responses }, int64(64 << 20), "0", int64(0)},
		{"responses-longest", func(c *config) any { return c.Proxy.ResponseBytes }, 1 << 20, "1KiB", 1 << 10},
		{"responses-lifetime", func(c *config) any { return c.Proxy.ResponseLife }, time.Hour, "1m", m},
		{"token-cache", func(c *config) any { return c.Proxy.TokenCache }, int64(64 << 20), "1MiB", int64(1 << 20)},
		{"tokenize-timeout", func(c *config) any { return c.Proxy.TokenizeTimeout }, s, "2s", 2 * s},
		{"namespace", func(c *config) any { return c.Replica.Namespace }, "default", "n", "n"},
		{"replica", func(c *config) any { return c.Replica.Replica }, proc.ReplicaName(), "r", "r"},
		{"discover-every", func(c *config) any { return c.Replica.Discover }, 2 * s, "1s", s},
		{"ready-lag", func(c *config) any { return c.Replica.ReadyLag }, 1000, "5", 5},
		{"max-spaces", func(c *config) any { return c.Replica.MaxSpaces }, 1024, "5", 5},
		{"block-size", func(c *config) any { return c.BlockSize }, 16, "64", 64},

		{"kv-transfer", func(c *config) any { return c.Transfer }, "vllm", "sglang", "sglang"},
		{"model", func(c *config) any { return c.Model }, "", "m", "m"},
		{"health-every", func(c *config) any { return c.HealthEvery }, 5 * s, "1s", s},
		{"health-path", func(c *config) any { return c.HealthPath }, "/health", "/x", "/x"},
		{"health-timeout", func(c *config) any { return c.HealthTimeout }, 2 * s, "1s", s},
		{"load-every", func(c *config) any { return c.LoadEvery }, 2 * s, "0s", 0 * s},
		{"load-path", func(c *config) any { return c.LoadPath }, "/metrics", "/x", "/x"},
		{"models-every", func(c *config) any { return c.ModelsEvery }, 15 * s, "1s", s},
		{"forward-client", func(c *config) any { return c.Proxy.ForwardClient }, true, "false", false},
		{"pair-losses", func(c *config) any { return c.PairLosses }, 3, "0", 0},
		{"pair-rest", func(c *config) any { return c.PairRest }, time.Minute, "5s", 5 * time.Second},
		{"unhealthy-after", func(c *config) any { return c.Unhealthy }, 3, "1", 1},
		{"retries", func(c *config) any { return c.Proxy.Retries }, 2, "1", 1},
		{"retry-share", func(c *config) any { return c.Proxy.RetryShare }, 0.1, "0", 0.0},
		{"dial-timeout", func(c *config) any { return c.Proxy.DialTimeout }, 2 * s, "1s", s},
		{"first-byte-timeout", func(c *config) any { return c.Proxy.FirstByte }, 10 * m, "1s", s},
		{"retry-burst", func(c *config) any { return c.Proxy.RetryBurst }, 64, "1", 1},
		{"retry-wait", func(c *config) any { return c.Proxy.RetryWait }, 25 * time.Millisecond, "1s", s},
		{"retry-500", func(c *config) any { return c.Proxy.Retry500 }, true, "false", false},
		{"breaker-failures", func(c *config) any { return c.Route.Breaker.Failures }, 3, "1", 1},
		{"breaker-share", func(c *config) any { return c.Route.Breaker.Share }, 0.5, "0", 0.0},
		{"breaker-window", func(c *config) any { return c.Route.Breaker.Window }, 10 * s, "1s", s},
		{"breaker-requests", func(c *config) any { return c.Route.Breaker.Least }, 10, "5", 5},
		{"breaker-wait", func(c *config) any { return c.Route.Breaker.Wait }, s, "2s", 2 * s},
		{"breaker-max-wait", func(c *config) any { return c.Route.Breaker.MaxWait }, 30 * s, "1m", m},
		{"breaker-probes", func(c *config) any { return c.Route.Breaker.Probes }, 2, "1", 1},
		{"overdue-after", func(c *config) any { return c.Route.OverdueAfter }, 20 * s, "0s", 0 * s},
		{"left-out-share", func(c *config) any { return c.Route.LeftOutShare }, 0.67, "1", 1.0},
		{"engine-idle-timeout", func(c *config) any { return c.Proxy.EngineIdle }, 5 * m, "1s", s},
		{"idle-connections", func(c *config) any { return c.Proxy.IdleConns }, 1024, "1", 1},
		{"inference-routes", func(c *config) any { return strings.Join(c.Proxy.Routes, " ") }, strings.Join(proxy.Kinds(), " "), "vllm,POST /x", "vllm POST /x"},
		{"engine-administration", func(c *config) any { return c.Proxy.Administration }, "operators", "open", "open"},
		{"engine-administration-timeout", func(c *config) any { return c.Proxy.AdministrationTimeout }, 10 * m, "1s", s},
		{"engine-token", func(c *config) any { return c.Shown.Token.Reveal() }, "", "t", "t"},
		{"engine-keep-alive", func(c *config) any { return c.Proxy.KeepAlive }, 3 * s, "1s", s},
		{"pass-through", func(c *config) any { return c.Proxy.PassThrough }, true, "false", false},
		{"http-max-body", func(c *config) any { return c.Proxy.MaxBody }, int64(64 << 20), "1MiB", int64(1 << 20)},
		{"body-memory-each", func(c *config) any { return c.Proxy.BodyEach }, int64(8 << 20), "1MiB", int64(1 << 20)},
		{"body-files", func(c *config) any { return c.Proxy.BodyFiles }, int64(8 << 30), "0", int64(0)},
		{"body-dir", func(c *config) any { return c.Proxy.BodyDir }, "", "/x", "/x"},
		{"inflight-share", func(c *config) any { return c.Proxy.InflightShare }, 0.5, "0.1", 0.1},
		{"body-share", func(c *config) any { return c.Proxy.BodyShare }, 0.5, "0.1", 0.1},
		{"body-memory", func(c *config) any { return c.Proxy.BodyMemory }, int64(1 << 30), "1MiB", int64(1 << 20)},
		{"http-max-header", func(c *config) any { return c.Proxy.MaxHeader }, int64(64 << 10), "8KiB", int64(8 << 10)},
		{"http-read-timeout", func(c *config) any { return c.Proxy.ReadTimeout }, 30 * s, "1s", s},
		{"http-write-timeout", func(c *config) any { return c.Proxy.WriteTimeout }, 30 * s, "1s", s},
		{"http-idle-timeout", func(c *config) any { return c.Proxy.IdleTimeout }, 2 * m, "1s", s},
		{"http-max-inflight", func(c *config) any { return c.Proxy.MaxInflight }, 16384, "1", 1},
		{"busy-status", func(c *config) any { return c.Proxy.BusyStatus }, 529, "503", 503},
		{"queue", func(c *config) any { return c.Proxy.Queue }, 1024, "7", 7},
		{"queue-order", func(c *config) any { return c.Proxy.QueueOrder }, "shortest", "fcfs", "fcfs"},
		{"queue-priority", func(c *config) any { return c.Proxy.QueuePriority }, "lower", "higher", "higher"},
		{"queue-age", func(c *config) any { return c.Proxy.QueueAge }, 10 * s, "1s", s},
		{"access-log", func(c *config) any { return c.AccessLog }, "", "-", "-"},
		{"access-log-buffer", func(c *config) any { return c.AccessLogBuffer }, int64(1 << 20), "1KiB", int64(1 << 10)},
		{"metric-labels", func(c *config) any { return c.Proxy.MetricLabels }, 200, "5", 5},
		{"queue-timeout", func(c *config) any { return c.Proxy.QueueTimeout }, 30 * s, "1s", s},
		{"session-header", func(c *config) any { return c.Proxy.SessionHeader }, "X-Session-Id", "X-A", "X-A"},
		{"sessions", func(c *config) any { return [2]bool{c.Proxy.SessionHarness, c.Proxy.SessionPrefix} }, [2]bool{true, true}, "prefix", [2]bool{false, true}},
		{"session-lifetime", func(c *config) any { return c.Proxy.SessionLife }, 10 * m, "1s", s},
		{"max-sessions", func(c *config) any { return c.Proxy.MaxSessions }, 1 << 17, "1", 1},
		{"trust", func(c *config) any { return len(c.Proxy.Trust) }, 0, "10.0.0.0/8,::1", 2},
		{"loras", func(c *config) any { l, _ := pairs("loras", "", c.Loras); return l["a"] }, "", "a=m", "m"},
		{"aliases", func(c *config) any { l, _ := pairs("aliases", "", c.Aliases); return l["a"] }, "", "a=m", "m"},
		{"ready-workers", func(c *config) any { return c.ReadyWorkers }, 0, "2", 2},
		{"ready-without-nats", func(c *config) any { return c.ReadyWithoutNATS }, 10 * s, "0", time.Duration(0)},
		{"worker-header", func(c *config) any { return c.Proxy.WorkerHeader }, false, "true", true},
		{"allowed-origins", func(c *config) any { return len(c.Proxy.Origins) }, 0, "https://chat.example,http://localhost:3000", 2},
		{"pass-headers", func(c *config) any { return len(c.Proxy.PassHeaders) }, 0, "x-vendor-key,X-B", 2},
		{"selection", func(c *config) any { return c.Proxy.Selection }, true, "false", false},
		{"nats", func(c *config) any { return c.Replica.NATS.URL }, "embedded", "nats://h", "nats://h"},
		{"registry-forget", func(c *config) any { return c.Replica.Registry.Forget }, 24 * time.Hour, "1h", time.Hour},
		{"log-level", func(c *config) any { return c.Log.Level }, "info", "debug", "debug"},
	} {
		c, err := read(t)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.get(c); got != f.def {
			t.Errorf("--%s is %v by default, want %v", f.name, got, f.def)
		}
		if c, err = read(t, "--"+f.name+"="+f.text); err != nil {
			t.Errorf("--%s %s: %v", f.name, f.text, err)
		} else if got := f.get(c); got != f.val {
			t.Errorf("--%s %s gives %v, want %v", f.name, f.text, got, f.val)
		}
	}
}

// Settings that work together.
func TestCombinations(t *testing.T) {
	c, err := read(t, "--busy-decode-fraction=0.5", "--busy-prefill-tokens=7", "--busy-prefill-fraction=2", "--track-output-blocks", "--output-decay")
	if b := c.Route.Busy; err != nil || *b.DecodeFraction != 0.5 || *b.PrefillTokens != 7 || *b.PrefillFraction != 2 || !c.Route.OutputDecay {
		t.Errorf("%+v %v", b, err)
	}
	if c, err = read(t); err != nil || c.Route.Busy.DecodeFraction != nil || c.Route.Busy.PrefillTokens != nil || c.Route.Busy.PrefillFraction != nil {
		t.Errorf("busy by default: %+v %v", c.Route.Busy, err)
	}
	for _, args := range [][]string{{"--overlap-weight=0"}, {"--mode=random"}, {"--mode=dynamo", "--prefill-load-scale=0"}} {
		if c, err := read(t, args...); err != nil || c.index() != fleet.NoIndex || c.Proxy.Indexed {
			t.Errorf("%v: an index is kept: %v", args, err)
		}
	}
	if c, err = read(t, "--kv-events=false"); err != nil || c.Proxy.Tokens != proxy.TokensBytes {
		t.Errorf("without events tokens come from %s: %v", c.Proxy.Tokens, err)
	}
	for _, args := range []string{
		"--tokens=bytes", "--engines=http://h", "--nats=none", "--tier-credits=1", "--tier-credits=1,1,1,2", "--trust=x", "--mode=x",
		"--retry-share=2", "--prefill-engines=http://h", "--kv-transfer=x", "--busy-status=99", "--queue-order=x", "--nothing",
		"--inference-routes=trex", "--engine-administration=x", "--loras=x", "--aliases=x",
		"--pass-headers=authorization", "--pass-headers=X-A,x-api-key", "--aliases=a=b,b=c", "--aliases=a=b,b=a", "--aliases=a=a", "--aliases=a=b,a=c", "--loras=a=b,b=m", "--loras=a=a", "--loras=a=m,a=n",
		"--sessions=x", "--objective=x", "--objective=ttft,e2e", "--objective=m=x", "--objective=m=", "--ttft-target=5", "--ttft-target=m=-1s", "--itl-target=x", "--itl-target=1ms,2ms",
		"--loras=a=b --aliases=b=m", "--loras=a=m --aliases=a=n",
		"--engines=a:8000 --model=m", "--engines=http://u:p@a --model=m", "--engines=http://a --prefill-engines=b --model=m",
		"--access-log=/", "--access-log=/nowhere/at/all", "--http-listen=127.0.0.1:99999", "--admin-listen=127.0.0.1:x-y",
	} {
		if _, err := read(t, strings.Fields(args)...); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
	if _, err := read(t, "--loras=a=m,b=m", "--aliases=c=a,d=m,e=m,e=m"); err != nil {
		t.Error(err)
	}
	c, err = read(t, "--objective=ttft,org/m=e2e", "--ttft-target=2s,org/m=500ms", "--itl-target=n=30ms")
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]route.Settings{
		"org/m": {Objective: "e2e", Targets: route.Targets{FirstToken: 500 * time.Millisecond}},
		"n":     {Objective: "ttft", Targets: route.Targets{FirstToken: 2 * time.Second, Token: 30 * time.Millisecond}},
		"other": {Objective: "ttft", Targets: route.Targets{FirstToken: 2 * time.Second}},
	} {
		if s := c.Route.Of(model); s.Objective != want.Objective || s.Targets != want.Targets {
			t.Errorf("model %s has %s and %+v", model, s.Objective, s.Targets)
		}
	}
	for mode, prefix := range map[string]bool{"auto": true, "kv": true, "least-loaded": true, "power-of-two": true, "round-robin": false, "random": false} {
		c, err := read(t, "--engines=http://a", "--model=m", "--mode="+mode)
		if err != nil || !c.Proxy.SessionHarness || c.Proxy.SessionPrefix != prefix {
			t.Errorf("%s: sessions by messages: %t, %v", mode, c.Proxy.SessionPrefix, err)
		}
	}
	c, err = read(t, "--engines=http://a,http://b", "--model=m", "--nats=none", "--overlap-weight=0")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := read(t, "--engines=http://a", "--prefill-engines=http://p", "--model=m"); err != nil || len(c.static()) != 2 ||
		c.static()[0].Role != registry.Decode || c.static()[1].Role != registry.Prefill || c.static()[1].ID != 1 {
		t.Errorf("pools: %v", err)
	}
	if w := c.static(); len(w) != 2 || w[1].ID != 1 || w[1].Endpoints.HTTP != "http://b" || !slices.Equal(w[0].Ranks, []uint32{0}) {
		t.Errorf("%+v", w)
	}
}
