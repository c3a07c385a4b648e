package client_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

var snippet = regexp.MustCompile("(?ms)^```(sh|python)\n(.*?)^```$")

// The snippets of docs/clients.md do what they say.
func TestSnippets(t *testing.T) {
	f, indexer, router := start(t)
	text, err := os.ReadFile("../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	all := snippet.FindAllStringSubmatch(string(text), -1)
	if len(all) != 5 {
		t.Errorf("%d snippets", len(all))
	}
	for _, m := range all {
		var args []string
		switch m[1] {
		case "sh":
			if _, err := exec.LookPath("curl"); err != nil {
				t.Log("not run, there is no curl here")
				continue
			}
			args = []string{"sh", "-euc", m[2]}
		default:
			if _, err := exec.LookPath("python3"); err != nil {
				t.Log("not run, there is no python3 here")
				continue
			}
			args = []string{"python3", "-c", m[2]}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "INDEXER="+indexer, "ROUTER="+router, "TOKEN="+readerToken, "no_proxy=127.0.0.1")
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil || len(out) == 0 {
			t.Errorf("%v\n%s\n%s", err, m[2], out)
		}
	}
	if n := f.router.Stats().Live; n != 0 {
		t.Errorf("%d reservations are left", n)
	}
}
