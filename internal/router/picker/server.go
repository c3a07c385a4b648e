package picker

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// Config holds what a Server is made with. All of it but Objectives and Known is needed.
type Config struct {
	Listen     string   // "": there is no picker
	Objectives []string // name=priority
	// Known says what priority others give an objective; nil: nobody does.
	Known func(name string) (priority int, known bool)

	Handler     http.Handler // a proxy.Proxy
	Metrics     *obs.Metrics
	Log         *slog.Logger
	Ready       func() bool
	MaxBody     int64
	MaxHeader   int64
	ReadTimeout time.Duration // for a request's head and body together
	MaxInflight int           // streams of one connection
	BusyStatus  int           // of the Handler's answers when all is busy, which here is 429
}

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	set.String(&c.Listen, "picker-listen", "", `Address, as host:port, at which gateways ask where requests are to go: the endpoint picker
		protocol of the Gateway API Inference Extension, by gRPC. Port 9002 is the usual. Limits of requests are those of HTTP. Empty: none.`)
	set.List(&c.Objectives, "picker-objectives", nil, `Priorities of inference objectives, as name=priority, which requests name in
		X-Gateway-Inference-Objective: higher goes first in the --queue, before other tenants; below 0 a request does not wait. Others have 0.`)
}

// objectives reads Config.Objectives.
func objectives(list []string) (map[string]int, error) {
	all := make(map[string]int, len(list))
	for _, item := range list {
		name, text, _ := strings.Cut(item, "=")
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || name == "" {
			return nil, fmt.Errorf("--picker-objectives: %q is no name=priority", item)
		}
		all[name] = int(n)
	}
	return all, nil
}

// priority returns that of an objective: the settings' before others'. One that is not known has 0.
func (s *Server) priority(name string) int {
	p, set := s.objectives[name]
	if !set && s.cfg.Known != nil {
		p, _ = s.cfg.Known(name)
	}
	return p
}

// Check returns what is wrong with the settings.
func (c *Config) Check() error {
	_, err := objectives(c.Objectives)
	return err
}

// Server answers gateways.
type Server struct {
	cfg        Config
	grpc       *grpc.Server
	objectives map[string]int
	meters     meters
	parts      sync.Pool // of *[]byte
	limit      *obs.Limited
	id         atomic.Uint64
	run        string // what id begins with
}

// meters are the metrics of a Server.
type meters struct {
	set     *obs.Metrics
	streams atomic.Int64
}

const (
	familyStreams = "kvatlas_picker_streams"
	familyFaults  = "kvatlas_picker_faults_total"
)

func (m *meters) faults(reason string) *metrics.Counter {
	return m.set.GetOrCreateCounter(obs.Name(familyFaults, "reason", reason))
}

// New returns a Server. The error is about Config.Objectives.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, meters: meters{set: cfg.Metrics}, limit: obs.NewLimited(cfg.Log, time.Second, nil), run: rand.Text()}
	var err error
	if s.objectives, err = objectives(cfg.Objectives); err != nil {
		return nil, err
	}
	s.parts.New = func() any { b := make([]byte, partSize); return &b }
	cfg.Metrics.Gauge(familyStreams, "Requests that gateways have open with the picker.", func() float64 { return float64(s.meters.streams.Load()) })
	cfg.Metrics.Help(familyFaults, "Streams that were ended because a gateway broke the protocol, or is not set up for it, by reason.")
	for _, reason := range [...]string{"body_mode", "observability_mode", "order", "head", "empty_subset", "late", "message"} {
		s.meters.faults(reason)
	}
	const window = 1 << 20   // a prompt of a hundred thousand tokens needs no second round
	const buffer = 128 << 10 // some frames for each call of the system
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(extproc.Codec{MaxHead: int(cfg.MaxHeader) + 64<<10}), grpc.MaxRecvMsgSize(int(cfg.MaxBody)+1<<20), grpc.MaxConcurrentStreams(uint32(cfg.MaxInflight)),
		grpc.MaxHeaderListSize(uint32(cfg.MaxHeader)), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(4*window),
		experimental.BufferPool(extproc.Pool), grpc.ReadBufferSize(buffer), grpc.WriteBufferSize(buffer),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 15 * time.Second}), // a gateway that vanishes has bookings
	)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: extproc.Service, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: extproc.Process, Handler: func(_ any, g grpc.ServerStream) error { return s.process(g) }, ServerStreams: true, ClientStreams: true}},
	}, s)
	s.grpc.RegisterService(&grpc.ServiceDesc{
		ServiceName: "grpc.health.v1.Health", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Check", Handler: func(_ any, _ context.Context, read func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var r extproc.HealthRequest
			if err := read(&r); err != nil {
				return nil, err
			}
			return s.health(r.Service)
		}}},
	}, s)
	return s, nil
}

// health answers grpc.health.v1.Health/Check.
func (s *Server) health(service string) (*extproc.HealthResponse, error) {
	switch service {
	case "liveness":
		return &extproc.HealthResponse{Status: extproc.IsServing}, nil
	case "", "readiness", extproc.Service:
		if s.cfg.Ready() {
			return &extproc.HealthResponse{Status: extproc.IsServing}, nil
		}
		return &extproc.HealthResponse{Status: extproc.NotServing}, nil
	}
	return nil, status.Error(codes.NotFound, "no such service here")
}

// fault counts a stream that is ended, and says why.
func (s *Server) fault(reason string, code codes.Code, text string) error {
	s.meters.faults(reason).Inc()
	s.limit.Warn("gateway", "a gateway's stream was ended", slog.String("reason", text))
	return status.Error(code, text)
}

// name returns an id that no other request has.
func (s *Server) name() string { return s.run + strconv.FormatUint(s.id.Add(1), 36) }

// Serve answers the connections of ln until Shutdown.
func (s *Server) Serve(ln net.Listener) error { return s.grpc.Serve(ln) }

// Shutdown takes no more streams and waits for those under way, or for ctx: then it cuts them off.
func (s *Server) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with Stop at the latest
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		left := s.meters.streams.Load()
		s.grpc.Stop()
		<-done
		return fmt.Errorf("%d streams of gateways were cut off: %w", left, ctx.Err())
	}
}
