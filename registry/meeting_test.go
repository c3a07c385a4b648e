package registry

import "testing"

// Where engines meet is a host and a port: routers put it into headers, and engines into URLs.
func TestWhereEnginesMeet(t *testing.T) {
	for at, good := range map[string]bool{
		"10.0.0.1:5600": true, "[2001:db8::1]:1": true, "node_1.example:65535": true,
		"host": false, ":1": false, "h:0": false, "h:65536": false, "h:http": false, "http://h:1": false, "http//h:1": false,
		"a\nb:1": false, "a\r\nX-Evil:1": false, "a b:1": false, "u@h:1": false, `a"b:1`: false, "h/p:1": false, "h?q:1": false, "é:1": false,
	} {
		for _, e := range []Endpoints{{Peer: at}, {Bootstrap: at}} {
			if err := e.checkMeeting(); (err == nil) != good {
				t.Errorf("%q: %v", at, err)
			}
		}
	}
}
