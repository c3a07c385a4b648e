package secure

import (
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Names are the names that a server answers to. A loopback port without tokens takes
// whoever reaches it for one of the machine, and so does the browser of somebody there with
// the pages of a site whose name means this machine now (DNS rebinding). It is therefore
// reached only as localhost, by an address, or by a name that was given to it. Certificates
// hold such a site off, too. A nil Names has all.
type Names struct{ given []string }

// Names returns those of a server that listens at the address, as host:port.
func (a *Access) Names(address string) *Names {
	host, _, err := net.SplitHostPort(address)
	if err != nil || !loopback(host) || a.Guarded() || a.HasTLS() {
		return nil
	}
	return &Names{given: a.settings.HostNames}
}

// RefusedName is what is said to who asked by a name that a server does not have.
const RefusedName = "ask for localhost, an address, or a name of --host-names: without --tokens-file this port is not served by others"

// Has reports whether a request with the Host is to be answered; one without is no browser's.
func (n *Names) Has(host string) bool {
	if n == nil || host == "" {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	is := func(name string) bool { return strings.EqualFold(host, name) }
	if is("localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil || slices.ContainsFunc(n.given, is)
}
