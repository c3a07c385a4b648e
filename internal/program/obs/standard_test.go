package obs

import (
	"bufio"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

// What an engine says unasked net/http prints. It is no line of a log.
func TestWhatAPeerSaysUnaskedIsNotLogged(t *testing.T) {
	out, w := io.Pipe()
	defer out.Close() //nolint:errcheck // has none
	flags, before := log.Flags(), log.Writer()
	defer func() {
		log.SetFlags(flags)
		log.SetOutput(before)
	}()
	Standard(slog.New(slog.NewTextHandler(w, nil)))

	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // nothing is under way
	read := make(chan struct{})
	go func() { // ends with the test's transport
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()                                                            //nolint:errcheck // all is written
		_, _ = http.ReadRequest(bufio.NewReader(c))                                // what it is does not matter
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK") // else the reader sees it
		<-read
		_, _ = io.WriteString(c, "a prompt that is nobody's")
	}()
	var client http.Transport
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+ln.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(resp.Body)
	_ = resp.Body.Close() // all was read
	close(read)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.Contains(line, "Unsolicited response") || strings.Contains(line, "prompt") {
		t.Errorf("%q, %v", line, err)
	}
}
