package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// ProbesSetting is the name of the one that says where probes may ask.
const ProbesSetting = "probe-listen"

// probes is a port for who can show neither a certificate nor a token, such as a kubelet: it
// says whether the process lives and is ready, and no more, not even why.
type probes struct {
	http *http.Server
	ln   net.Listener
	done chan struct{}
}

// startProbes serves the port until close. It returns nil if there is to be none.
func startProbes(ctx context.Context, address string, d *Deps) (*probes, error) {
	if address == "" {
		return nil, nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("opening the address of --%s: %w", ProbesSetting, err)
	}
	about, mux := edge.About{Health: d.Health}, http.NewServeMux()
	for _, path := range [...]string{"/livez", "/readyz"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			status, kind, body := about.Answer(path, false)
			edge.Write(w, status, kind, body)
		})
	}
	p := &probes{ln: ln, done: make(chan struct{}), http: &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		ErrorLog: slog.NewLogLogger(d.Log.Handler(), slog.LevelDebug),
	}}
	go func() { // ends with close
		defer close(p.done)
		if err := p.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			d.Log.Error("the port for probes is closed", "error", err)
		}
	}()
	d.Log.Info("port for probes", "address", ln.Addr().String())
	return p, nil
}

// close ends it. nil is closed.
func (p *probes) close() error {
	if p == nil {
		return nil
	}
	err := p.http.Close()
	<-p.done
	return err
}
