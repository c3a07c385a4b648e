package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// resident returns how much memory of its own, and how much of files, a process has.
func (p *process) resident() (own, files int64) {
	p.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Skipf("no /proc: %v", err)
	}
	for line := range strings.Lines(string(data)) {
		for name, at := range map[string]*int64{"RssAnon:": &own, "RssFile:": &files} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				if err != nil {
					p.t.Fatal(err)
				}
				*at = kb << 10
			}
		}
	}
	return own, files
}

// Short requests that become long ones take room in files, and none of it is the
// router's memory while engines are at work on them; nor is there a block for each of
// their bytes. All 8 of 32 MiB are held at the engine when memory is looked at.
func TestBodiesThatExplode(t *testing.T) {
	const bombs, size, room = 8, 32 << 20, 160 << 20
	arrived, leave := make(chan struct{}, bombs), make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, _ := io.Copy(io.Discard, r.Body); n > size {
			arrived <- struct{}{}
			<-leave
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(engine.Close)
	p, url := startRouter(t, t.TempDir(), "--nats=none", "--kv-events=false", "--engines="+engine.URL, "--model=m", "--admin-listen=127.0.0.1:0", "--body-share=1", "--max-prompt-tokens=100000")
	kinds := []func(w io.Writer, n int){
		func(w io.Writer, n int) { // a text
			_, _ = io.WriteString(w, `"`+strings.Repeat("x", n)+`"`)
		},
		func(w io.Writer, n int) { // tokens
			_, _ = io.WriteString(w, `[1`+strings.Repeat(",1", n/2)+`]`)
		},
	}
	bodies := make([]bytes.Buffer, len(kinds))
	for i, write := range kinds {
		z := gzip.NewWriter(&bodies[i])
		_, _ = io.WriteString(z, `{"model":"m","prompt":`)
		write(z, size)
		_, _ = io.WriteString(z, `}`)
		_ = z.Close()
	}
	ended := make(chan error, bombs)
	for i := range bombs {
		go func() { // ends with the router
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", bytes.NewReader(bodies[i%len(bodies)].Bytes()))
			if err != nil {
				ended <- err
				return
			}
			req.Header.Set("Content-Encoding", "gzip")
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("%s", resp.Status)
				}
			}
			ended <- err
		}()
	}
	for range bombs {
		select {
		case <-arrived:
		case err := <-ended:
			t.Fatalf("one is not served: %v", err)
		case <-time.After(2 * time.Minute):
			t.Fatal("not all arrive")
		}
	}
	own, files := p.resident()
	t.Logf("%d MiB of its own, %d of files", own>>20, files>>20)
	if own > room || files > room {
		t.Errorf("%d bodies of %d MiB: %d MiB of its own memory and %d of files, want at most %d of each", bombs, size>>20, own>>20, files>>20, room>>20)
	}
	close(leave)
	for range bombs {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	p.stop()
}
