package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// fleetServer is the configuration of fleet's external server, which is a process
// of kvbench: its first line of input.
type fleetServer struct {
	Address, Dir string
	Sync         time.Duration
	Always       bool
}

// runFleetServer runs the server until its input ends.
func runFleetServer(_ context.Context, _ []string, _, stderr io.Writer) error {
	in := bufio.NewReader(os.Stdin)
	var cfg fleetServer
	if err := readConfig(in, &cfg); err != nil {
		return err
	}
	host, text, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "kvbench", Host: host, Port: port, NoSigs: true, JetStream: true, StoreDir: cfg.Dir,
		SyncInterval: cfg.Sync, SyncAlways: cfg.Always, DisableJetStreamBanner: true, MaxConn: 1 << 17,
	})
	if err != nil {
		return err
	}
	srv.ConfigureLogger()
	go srv.Start() // ends with Shutdown
	defer srv.Shutdown()
	if !srv.ReadyForConnections(patience) {
		return errors.New("the server does not start")
	}
	fmt.Fprintln(stderr, "listening on", cfg.Address)
	_, err = io.Copy(io.Discard, in)
	return err
}

// readConfig reads the line that a process of fleet is told first.
func readConfig(in *bufio.Reader, cfg any) error {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("this command is fleet's own: %w", err)
	}
	return json.Unmarshal(line, cfg)
}
