package registry

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// Allow says which endpoints HTTP clients may register, so that nobody makes
// kvatlas connect to where it should not. Names are compared as they are
// written, not by what they resolve to. The zero value allows the addresses of
// this machine.
type Allow struct{ rules []allowRule }

type allowRule struct {
	prefix netip.Prefix // valid: of addresses
	host   string       // else a pattern as of path.Match
	port   string       // ""; any
	ipc    string       // pattern of a path, for ipc:// endpoints
}

// ParseAllow reads patterns: an address, a network (10.0.0.0/8), a host name
// with * (*.engines.example), each with or without :port, or ipc:///path with
// *. "*" allows every host.
func ParseAllow(patterns []string) (Allow, error) {
	var a Allow
	for _, p := range patterns {
		r, err := parseRule(p)
		if err != nil {
			return Allow{}, fmt.Errorf("allowed endpoint %q: %w", p, err)
		}
		a.rules = append(a.rules, r)
	}
	return a, nil
}

func parseRule(p string) (r allowRule, err error) {
	if file, ok := strings.CutPrefix(p, "ipc://"); ok {
		_, err = path.Match(file, "")
		return allowRule{ipc: file}, err
	}
	host := p
	if h, port, err := net.SplitHostPort(p); err == nil {
		host, r.port = h, port
	}
	if prefix, err := netip.ParsePrefix(host); err == nil {
		r.prefix = prefix.Masked()
		return r, nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		r.prefix = netip.PrefixFrom(addr, addr.BitLen())
		return r, nil
	}
	if host == "" || strings.ContainsAny(host, "/:") {
		return r, fmt.Errorf("give an address, a network or a host name, with or without a port")
	}
	r.host = strings.ToLower(host)
	_, err = path.Match(r.host, "")
	return r, err
}

// loopback are the rules of the zero value.
func loopback() []allowRule {
	return []allowRule{
		{prefix: netip.MustParsePrefix("127.0.0.0/8")}, {prefix: netip.MustParsePrefix("::1/128")}, {host: "localhost"},
	}
}

// Check refuses an endpoint that is not one, or is not allowed. Of tcp:// and
// ipc:// it looks at the very text that is dialled.
func (a Allow) Check(endpoint string) error {
	rules := a.rules
	if rules == nil {
		rules = loopback()
	}
	if file, ok := strings.CutPrefix(endpoint, "ipc://"); ok {
		for _, r := range rules {
			if ok, _ := path.Match(r.ipc, file); ok && r.ipc != "" && file == path.Clean(file) {
				return nil
			}
		}
		return notAllowed(endpoint)
	}
	bad := fmt.Errorf("endpoint %q is no address such as tcp://10.0.0.7:5557", endpoint)
	u, err := url.Parse(endpoint)
	if err != nil {
		return bad
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	switch u.Scheme {
	case "tcp":
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || endpoint != "tcp://"+u.Host {
			return bad
		}
	case "http", "https":
	default:
		return fmt.Errorf("endpoint %q: give tcp://, http://, https:// or ipc://", endpoint)
	}
	if host == "" || u.User != nil {
		return bad
	}
	addr, addrErr := netip.ParseAddr(host)
	for _, r := range rules {
		if r.ipc != "" || r.port != "" && r.port != port {
			continue
		}
		if r.prefix.IsValid() {
			if addrErr == nil && r.prefix.Contains(addr.Unmap().WithZone("")) {
				return nil
			}
			continue
		}
		if ok, _ := path.Match(r.host, host); ok {
			return nil
		}
	}
	return notAllowed(endpoint)
}

func notAllowed(endpoint string) error {
	return fmt.Errorf("endpoint %q is not among those that may be registered (see --registry-allow)", endpoint)
}
