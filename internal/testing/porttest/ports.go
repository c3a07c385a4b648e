package porttest

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Free returns the first of n ports in a row where nobody listens.
func Free(t testing.TB, n int) int {
	t.Helper()
	for range 1000 {
		first := 10_000 + rand.IntN(20_000)
		var open []net.Listener
		for len(open) < n {
			l, err := net.Listen("tcp", Local(first+len(open)))
			if err != nil {
				break
			}
			open = append(open, l)
		}
		for _, l := range open {
			_ = l.Close() // they have given their ports
		}
		if len(open) == n {
			return first
		}
	}
	t.Fatalf("no %d ports in a row are free", n)
	return 0
}

// Local returns a port's address, for this machine only.
func Local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
