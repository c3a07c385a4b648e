package main

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// What a cluster without a leader answers is said in words that tell what to look at.
func TestAClusterWithoutALeader(t *testing.T) {
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	go srv.Start() // ends with Shutdown
	defer srv.Shutdown()
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Subscribe("$JS.API.>", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`))
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"worker list", "worker drain 7", "snapshot list", "reset"} {
		for _, flags := range [][]string{nil, {"--json"}} {
			args := append(append(flags, "--nats", srv.ClientURL()), strings.Fields(command)...)
			code, stdout, stderr := kvctl(t, args...)
			if said := stdout + stderr; code != 1 || !strings.Contains(said, obs.SeeCluster) || strings.Contains(said, "err_code") {
				t.Errorf("%s: %d %s", command, code, said)
			}
		}
	}
}
