package loadsync

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What one router tells the others of its namespace hear, and what is too long is an error.
func TestTurns(t *testing.T) {
	dir := t.TempDir()
	heard := make(chan string, 8)
	var all []*Turns
	for i, namespace := range []string{"ns", "ns", "elsewhere"} {
		ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
		t.Cleanup(cancel)
		b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		x, err := OpenTurns(b.Conn(), namespace, func(msg []byte) { heard <- fmt.Sprint(i, " ", string(msg)) })
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Conn().FlushWithContext(ctx); err != nil { // it listens
			t.Fatal(err)
		}
		all = append(all, x)
	}
	if _, err := OpenTurns(nil, "a b", nil); err == nil {
		t.Error("a namespace that is none is taken")
	}
	if all[0].Tell(make([]byte, maxTurn+1)) == nil {
		t.Error("a message that is too long is told")
	}
	if err := all[0].Tell([]byte("x")); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{<-heard: true, <-heard: true}
	if !got["0 x"] || !got["1 x"] || len(heard) > 0 {
		t.Errorf("heard %v and %d more", got, len(heard))
	}
	for _, x := range all {
		if err := x.Close(); err != nil || x.Close() != nil {
			t.Error(err)
		}
	}
}
