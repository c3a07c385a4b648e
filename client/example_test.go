package client_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http/httptest"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/client"
)

// exampleServers stand for kvindexer and kvrouter.
func exampleServers() (indexer, router string, stop func()) {
	f, err := newFleet()
	if err != nil {
		panic(err) // an example has no other way
	}
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		panic(err)
	}
	indexer, end, err := f.startIndexer(dir)
	if err != nil {
		panic(err)
	}
	r := httptest.NewServer(f.serveRouter())
	return indexer, r.URL, func() {
		r.Close()
		end()
		f.set.Close()
		_ = os.RemoveAll(dir) // what the system's folder keeps otherwise
	}
}

// Which worker has the most of a prompt?
func ExampleClient_FindMatches() {
	indexer, _, stop := exampleServers()
	defer stop()

	c, err := client.New(client.Config{URL: indexer, Token: client.StaticToken(readerToken), Binary: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	group := "" // the default group
	m, err := c.FindMatches(ctx, client.Find{Model: "org/model", Group: &group, TokenIDs: []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, space := range m.Spaces {
		if best, ok := space.Longest(); ok {
			fmt.Printf("worker %d rank %d has %d of %d blocks\n", best.Worker, best.DPRank, best.Device, space.Blocks)
		}
	}
	// Output: worker 2 rank 1 has 2 of 2 blocks
}

// A request's way with reservations: reserve, tell of its progress, free.
func ExampleClient_SelectAndReserve() {
	_, router, stop := exampleServers()
	defer stop()

	c, err := client.New(client.Config{URL: router})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()
	s, err := c.SelectAndReserve(ctx, client.Choose{Model: "org/model", TokenIDs: []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Free(ctx, s.ID) //nolint:errcheck // its lease ends it otherwise
	fmt.Printf("send it to %s, rank %d: %d tokens are to be computed\n", s.Endpoint, s.DPRank, s.PrefillTokens)
	if err := c.PrefillComplete(ctx, s.ID); err != nil { // with the first token of the answer
		fmt.Println(err)
	}
	// Output: send it to http://engine-2:8000, rank 1: 1 tokens are to be computed
}

// Tokens from a file that may be replaced at any time, and a client certificate.
func ExampleNew() {
	c, err := client.New(client.Config{
		URL:   "https://kvindexer.example:8090",
		Token: client.TokenFile("/run/secrets/kvatlas-token"),
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair("/etc/client.pem", "/etc/client-key.pem") // read anew for each connection
			return &pair, err
		}},
		Timeout: time.Second, Retries: 2,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	fmt.Println("ready to ask")
	// Output: ready to ask
}
