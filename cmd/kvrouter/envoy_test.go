package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/testing/porttest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// envoyConfig has two listeners: bodies in full duplex, and buffered.
const envoyConfig = `
static_resources:
  listeners:
%s%s  clusters:
  - name: picker
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: picker
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
`

// Whom requests go to: the one endpoint that the header names, or the next one of several where one fails.
const (
	envoyOne = `  - name: engines
    type: ORIGINAL_DST
    lb_policy: CLUSTER_PROVIDED
    connect_timeout: 1s
    original_dst_lb_config: {use_http_header: true, http_header_name: x-gateway-destination-endpoint}
`
	envoySeveral = `  - name: engines
    type: STATIC
    connect_timeout: 1s
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{header: x-gateway-destination-endpoint}]
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.round_robin
                  typed_config: {"@type": type.googleapis.com/envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin}
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
`
	envoyEndpoint = `        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}
`
	envoyRetry = `, retry_policy: {retry_on: "5xx,reset,connect-failure,retriable-4xx,retriable-status-codes", retriable_status_codes: [404, 429], num_retries: 2}`
)

const envoyListener = `  - name: %[1]s
    address: {socket_address: {address: 127.0.0.1, port_value: %[2]d}}
    per_connection_buffer_limit_bytes: 16777216
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: %[1]s
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: "/"}
                route: {cluster: engines, timeout: 60s%[6]s}
          http_filters:
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
              failure_mode_allow: false
              message_timeout: 30s
              request_attributes: [source.address]
              grpc_service: {envoy_grpc: {cluster_name: picker}, timeout: 60s}
              processing_mode: {request_header_mode: SEND, response_header_mode: SEND, request_body_mode: %[3]s, response_body_mode: %[4]s, request_trailer_mode: %[5]s, response_trailer_mode: %[5]s}
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
`

// startEnvoy runs an Envoy before a picker and engines, and returns the URLs of its listeners in
// full duplex and with buffers, and the router's.
func startEnvoy(t *testing.T, args ...string) (duplex, buffered, url string) {
	t.Helper()
	var engines []string
	for range 3 {
		engines = append(engines, engine(t, mockapi.Config{Step: func(*mock.Report) time.Duration { return time.Millisecond }}))
	}
	return envoyBefore(t, engines, args...)
}

// envoyBefore is startEnvoy with these engines.
func envoyBefore(t *testing.T, engines []string, args ...string) (duplex, buffered, url string) {
	t.Helper()
	binary := os.Getenv("KVATLAS_ENVOY")
	if binary == "" {
		t.Skip("make test-gateway runs this, with an Envoy that it fetches")
	}
	found := &addresses{slog.DiscardHandler, make(chan string, 1)}
	url, _ = startLogged(t, slog.New(found), append([]string{"--nats=none", "--kv-events=false", "--engines=" + strings.Join(engines, ","), "--model=m", "--block-size=4",
		"--picker-listen=127.0.0.1:0", "--health-every=50ms"}, args...)...)
	_, port, err := net.SplitHostPort(<-found.found)
	if err != nil {
		t.Fatal(err)
	}
	first := porttest.Free(t, 2)
	to, retry := envoyOne, ""
	if slices.Contains(args, "--picker-fallbacks=2") {
		to, retry = envoySeveral, envoyRetry
		for _, e := range engines {
			to += fmt.Sprintf(envoyEndpoint, e[strings.LastIndexByte(e, ':')+1:])
		}
	}
	text := fmt.Sprintf(envoyConfig, fmt.Sprintf(envoyListener, "duplex", first, "FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED", "SEND", retry),
		fmt.Sprintf(envoyListener, "buffered", first+1, "BUFFERED", "STREAMED", "SKIP", retry), port) + to
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "-c", file, "--use-dynamic-base-id", "--concurrency", "2", "-l", "warning")
	var out strings.Builder
	cmd.Stderr, cmd.Stdout = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(out.String())
		}
	})
	duplex, buffered = "http://"+porttest.Local(first), "http://"+porttest.Local(first+1)
	for _, u := range []string{duplex, buffered} {
		waittest.Until(t, func() error {
			if status, text, _ := ask(http.MethodGet, u+"/v1/models", ""); status != http.StatusOK || !strings.Contains(text, `"m"`) {
				return fmt.Errorf("%d %s", status, text)
			}
			return nil
		})
	}
	return duplex, buffered, url
}

// Envoy sends requests where the picker says, and nothing stays booked.
func TestEnvoy(t *testing.T) {
	duplex, buffered, url := startEnvoy(t)
	for name, gateway := range map[string]string{"full duplex": duplex, "buffered": buffered} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{100, 20_000, 220_000, 4 << 20} {
				for _, stream := range []string{"true", "false"} {
					first := ""
					for range 2 { // what was said once is cached where it was
						body := fmt.Sprintf(`{"model":"m","max_tokens":4,"stream":%s,"prompt":"%s %d %s","user":"%s"}`, stream, name, size,
							strings.Repeat("say this ", min(size, 220_000)/9), strings.Repeat("u", max(size-220_000, 0)))
						status, text, h := ask(http.MethodPost, gateway+"/v1/completions", body)
						worker := h.Get("X-Kvatlas-Worker")
						if status != http.StatusOK || worker == "" || stream == "true" && !strings.HasSuffix(text, "data: [DONE]\n\n") {
							t.Fatal(size, stream, status, h, text)
						}
						if first != "" && worker != first {
							t.Errorf("%d bytes: worker %s after %s", size, worker, first)
						}
						first = worker
					}
				}
			}
			if status, text, _ := ask(http.MethodPost, gateway+"/v1/completions", `{"model":"other","prompt":"x"}`); status != http.StatusNotFound || !strings.Contains(text, "model_not_found") {
				t.Error(status, text)
			}
			if status, text, _ := ask(http.MethodGet, gateway+"/metrics", ""); status != http.StatusNotFound {
				t.Error(status, text)
			}
			noBookings(t, url)
		})
	}
	waittest.Until(t, func() error {
		_, text, _ := ask(http.MethodGet, url+"/metrics", "")
		if strings.Contains(text, "kvatlas_router_requests_total{outcome=\"ok\"} 32\n") && strings.Contains(text, "kvatlas_picker_streams 0\n") {
			return nil
		}
		return errors.New("32 requests should have been answered, and no stream be open")
	})
}

// Clients go while their answers come, and pieces of bodies come late.
func TestEnvoyManyAndGone(t *testing.T) {
	duplex, _, url := startEnvoy(t)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			in, out := io.Pipe()
			go func() { // ends with the request
				for _, piece := range []string{`{"model":"m","stream":true,"max_tokens":200,`, fmt.Sprintf(`"prompt":"%d `, i), strings.Repeat("x", 100*i), `"}`} {
					if _, err := io.WriteString(out, piece); err != nil {
						return
					}
				}
				_ = out.Close() // never fails
			}()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, duplex+"/v1/completions", in)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close() //nolint:errcheck // only read
			if resp.StatusCode != http.StatusOK {
				t.Error(resp.Status)
			}
			if i%2 == 0 {
				_, err = io.ReadFull(resp.Body, make([]byte, 20)) // and goes
			} else {
				_, err = io.Copy(io.Discard, resp.Body)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	noBookings(t, url)
}
