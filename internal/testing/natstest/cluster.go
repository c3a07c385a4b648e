package natstest

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvatlas/kvatlas/internal/testing/porttest"
)

// asServer makes a test binary a server of a cluster: its number, the directory where it
// stores, its address for clients, and the addresses of all for one another.
const asServer = "RUN_AS_NATS_SERVER"

// RunServer makes the process a server of a Cluster until it is killed, if it was started as
// one; the TestMain of a package that starts clusters calls it first.
func RunServer() {
	args := strings.Fields(os.Getenv(asServer))
	if len(args) == 0 {
		return
	}
	var number int
	if _, err := fmt.Sscan(args[0], &number); err != nil {
		panic(err)
	}
	hosts := args[3:]
	var client, own *net.TCPAddr
	for to, host := range map[**net.TCPAddr]string{&client: args[2], &own: hosts[number]} {
		at, err := net.ResolveTCPAddr("tcp", host)
		if err != nil {
			panic(err)
		}
		*to = at
	}
	var routes []*url.URL
	for _, host := range hosts {
		routes = append(routes, &url.URL{Scheme: "nats", Host: host})
	}
	s, err := server.NewServer(&server.Options{
		ServerName: serverName(number), Host: "127.0.0.1", Port: client.Port, NoSigs: true, NoLog: true,
		JetStream: true, JetStreamMaxStore: room, StoreDir: args[1], Cluster: server.ClusterOpts{Name: "c" + hosts[0], Host: "127.0.0.1", Port: own.Port}, Routes: routes,
	})
	if err != nil {
		panic(err)
	}
	s.Start()
	select {} // until it is killed
}

// room is what streams may set aside on a server: not a share of what the disk has free.
const room = 64 << 30

func serverName(number int) string { return fmt.Sprintf("n%d", number) }

// Cluster is three servers with JetStream, each a process that can be killed.
type Cluster struct {
	URLs    []string
	servers []*exec.Cmd
}

// StartCluster runs three servers until the test ends.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	const servers = 3
	var hosts, clients []string
	for first, i := porttest.Free(t, 2*servers), 0; i < servers; i++ {
		hosts, clients = append(hosts, porttest.Local(first+i)), append(clients, porttest.Local(first+servers+i))
	}
	c := &Cluster{}
	for i := range servers {
		cmd := exec.Command(os.Args[0]) //nolint:gosec // this very binary
		cmd.Env = []string{fmt.Sprintf("%s=%d %s %s %s", asServer, i, t.TempDir(), clients[i], strings.Join(hosts, " "))}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // it may have been
			_ = cmd.Wait()
		})
		c.servers = append(c.servers, cmd)
		c.URLs = append(c.URLs, "nats://"+clients[i])
	}
	return c
}

// Number returns which server goes by the name, as streams say who leads them.
func (c *Cluster) Number(name string) int {
	for i := range c.servers {
		if serverName(i) == name {
			return i
		}
	}
	return -1
}

// Kill ends a server as a crash does.
func (c *Cluster) Kill(t testing.TB, number int) {
	t.Helper()
	if err := c.servers[number].Process.Kill(); err != nil {
		t.Fatal(err)
	}
}
