package zmtp

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

// Dial connects to an endpoint (tcp://host:port, ipc://path or ipc://@name) and
// shakes hands.
func Dial(ctx context.Context, endpoint string, t Type, o Options) (*Conn, error) {
	o.setDefaults()
	if err := CheckDial(endpoint); err != nil {
		return nil, err
	}
	network, address, err := split(endpoint)
	if err != nil {
		return nil, err
	}
	// Keep-alives find a peer that is gone without a word: an idle publisher
	// sends nothing, and ZMTP 3.0 has no heartbeats.
	d := net.Dialer{Timeout: o.Handshake, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // it only ends the handshake
	defer stop()
	c, err := Handshake(nc, t, o)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return c, nil
}

// Listen listens at an endpoint; tcp://*:port means every address of the host.
// Accepted connections go through Handshake.
func Listen(endpoint string) (net.Listener, error) {
	network, address, err := split(endpoint)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen(network, strings.TrimPrefix(address, "*"))
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", endpoint, err)
	}
	return l, nil
}

// CheckDial returns an error about a text that is no endpoint to connect to.
func CheckDial(endpoint string) error {
	if err := Check(endpoint); err != nil {
		return err
	}
	if _, address, _ := split(endpoint); strings.HasPrefix(address, "*:") || strings.HasPrefix(address, ":") {
		return fmt.Errorf("endpoint %q: it has no host to connect to; want tcp://host:port, as it is reached from here", endpoint)
	}
	return nil
}

// Check returns an error about a text that is no endpoint, to connect to or to listen at.
func Check(endpoint string) error {
	network, address, err := split(endpoint)
	if err == nil && network == "tcp" {
		_, _, err = net.SplitHostPort(address)
	}
	if err != nil {
		return fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", endpoint)
	}
	return nil
}

func split(endpoint string) (network, address string, err error) {
	scheme, address, ok := strings.Cut(endpoint, "://")
	switch {
	case ok && scheme == "tcp" && address != "":
		return "tcp", address, nil
	case ok && scheme == "ipc" && address != "":
		return "unix", address, nil
	}
	return "", "", fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", endpoint)
}
