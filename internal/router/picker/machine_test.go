package picker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/extproc"
)

// Each script is an exchange: what happens, and after the arrow what is done and which state it
// leaves.
func TestScripts(t *testing.T) {
	const full, buffered, none, streamed = extproc.ModeFullDuplex, extproc.ModeBuffered, extproc.ModeNone, extproc.ModeStreamed
	for _, c := range []struct {
		name              string
		request, response extproc.Mode
		script            string
	}{
		{"full duplex", full, full, `
			head -> serve | reading
			body -> feed | reading
			body end -> feed, feed end | choosing
			picked -> direct, echo | handed
			answer -> go on, tell | answering
			chunk -> echo chunk, tell chunk | answering
			chunk end -> echo chunk, tell chunk, tell end | ended
			refused -> | ended
			closed -> | passed`},
		{"full duplex with trailers on both sides", full, full, `
			head -> serve | reading
			body -> feed | reading
			trailers -> feed end | choosing
			picked -> direct, echo, end trailers | handed
			answer -> go on, tell | answering
			chunk -> echo chunk, tell chunk | answering
			answer trailers -> go on, tell end | ended
			closed -> | passed`},
		{"buffered", buffered, buffered, `
			head -> go on, serve | reading
			body end -> feed, feed end | choosing
			picked -> direct whole | handed
			answer -> go on, tell | answering
			chunk end -> go on, tell chunk, tell end | ended
			closed -> | passed`},
		{"buffered, trailers behind the body", buffered, streamed, `
			head -> go on, serve | reading
			body -> feed, feed end | choosing
			trailers -> go on | choosing
			picked -> direct whole | handed
			answer -> go on, tell | answering
			chunk -> go on, tell chunk | answering
			chunk end -> go on, tell chunk, tell end | ended`},
		{"without a body", full, full, `
			head alone -> serve, feed end | choosing
			picked -> direct | handed
			answer only -> go on, tell, tell end | ended
			closed -> | passed`},
		{"the answer's body is not shown", full, none, `
			head -> serve | reading
			body end -> feed, feed end | choosing
			picked -> direct, echo | handed
			answer -> go on, tell | answering
			closed -> tell end | passed`},
		{"refused before the body is there", full, full, `
			head -> serve | reading
			refused -> refuse | passed
			body -> | passed
			body end -> | passed
			picked -> | passed
			closed -> cancel | passed`},
		{"the engine is too late", full, full, `
			head alone -> serve, feed end | choosing
			picked -> direct | handed
			refused -> refuse | passed
			answer -> go on | passed
			chunk -> echo chunk | passed`},
		{"the gateway answers itself", full, full, `
			head -> serve | reading
			answer -> go on, cancel | passed
			chunk end -> echo chunk | passed
			picked -> | passed`},
		{"the client goes in the middle", full, full, `
			head -> serve | reading
			body end -> feed, feed end | choosing
			picked -> direct, echo | handed
			answer -> go on, tell | answering
			closed -> cancel | passed
			chunk -> echo chunk | passed`},
		{"reset behind the answer's end", full, full, `
			head alone -> serve, feed end | choosing
			picked -> direct | handed
			answer only -> go on, tell, tell end | ended
			cut -> | passed`},
		{"reset", full, full, `
			head -> serve | reading
			cut -> cancel | passed`},
		{"bodies do not come", none, full, `head -> cancel, fault | passed`},
		{"bodies come too late", streamed, full, `head -> cancel, fault | passed`},
		{"two heads", full, full, `
			head -> serve | reading
			head -> cancel, fault | passed`},
		{"an answer's body without its head", full, full, `
			head alone -> serve, feed end | choosing
			chunk -> cancel, fault | passed`},
		{"the body goes on behind its end", full, full, `
			head -> serve | reading
			body end -> feed, feed end | choosing
			body -> cancel, fault | passed`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine{request: c.request, response: c.response}
			for line := range strings.SplitSeq(strings.TrimSpace(c.script), "\n") {
				in, want, _ := strings.Cut(strings.TrimSpace(line), " ->")
				i := slices.Index(inputNames[:], in)
				if i < 0 {
					t.Fatalf("there is no input %q", in)
				}
				var acts []string
				for _, a := range m.step(input(i)) {
					acts = append(acts, a.String())
				}
				if got := strings.TrimSpace(strings.Join(acts, ", ") + " | " + m.state.String()); got != strings.TrimSpace(want) {
					t.Fatalf("%s: %s, want %s", in, got, strings.TrimSpace(want))
				}
			}
		})
	}
}

// Whatever comes in whatever order: the header answer is given once at most and before any of the
// body; the engine's answer is told once; nothing is given to the router behind its end.
func TestAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50_000 {
		m := machine{request: extproc.Mode(rng.IntN(6)), response: extproc.Mode(rng.IntN(6))}
		var done []act
		var said []string
		for range 1 + rng.IntN(10) {
			in := input(rng.IntN(int(inCut) + 1))
			acts := m.step(in)
			done = append(done, acts...)
			said = append(said, fmt.Sprint(in, acts))
		}
		at := func(list ...act) int {
			return slices.IndexFunc(done, func(a act) bool { return slices.Contains(list, a) })
		}
		count := func(list ...act) (n int) {
			for _, a := range done {
				if slices.Contains(list, a) {
					n++
				}
			}
			return n
		}
		directed, served := at(direct, directWhole), at(serve)
		switch {
		case count(direct, directWhole) > 1, count(tell) > 1, count(serve) > 1, count(feedEnd) > 1, count(tellEnd) > 1, count(refuse) > 1,
			at(echo) >= 0 && (directed < 0 || at(echo) < directed),
			directed >= 0 && (served < 0 || at(feedEnd) < 0 || at(feedEnd) > directed),
			at(tell) >= 0 && (directed < 0 || at(tell) < directed),
			at(tellChunk) >= 0 && at(tellChunk) < at(tell),
			at(tellEnd) >= 0 && slices.Contains(done[at(tellEnd):], tellChunk),
			at(feedEnd) >= 0 && slices.Contains(done[at(feedEnd):], feed):
			t.Fatal(strings.Join(said, "\n"))
		}
	}
}
