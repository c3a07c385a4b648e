package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// No program shows the password in any of its settings: not when it prints or checks them,
// nor when it refuses them, nor when it starts with an address that is wrong or
// where nobody is.
func TestNoProgramShowsAPassword(t *testing.T) {
	const password = "hunter2"
	lists, dir := listed(t)
	run := func(enough, program string, args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
		defer cancel()
		out := &until{words: enough, end: cancel}
		cmd := exec.CommandContext(ctx, filepath.Join(dir, program), args...) //nolint:gosec // our own programs
		cmd.Env = []string{"HOME=" + t.TempDir()}
		cmd.Stdout, cmd.Stderr = out, out
		_ = cmd.Run() // it is refused, or ended
		if strings.Contains(out.text.String(), password) {
			t.Errorf("%s %q:\n%s", program, args, out.text.String())
		}
		return out.text.String()
	}
	for _, l := range lists {
		t.Run(l.Program, func(t *testing.T) {
			t.Parallel()
			secret := 0
			for _, s := range l.Settings {
				if s.Kind != "string" && s.Kind != "list" && s.Kind != "credential" || s.Name == "config" {
					continue
				}
				if word := credentialWord(s.Name); word != "" && !s.Secret && !strings.Contains(strings.ToLower(s.Help), "file") {
					t.Errorf("--%s has a %s in its name and is neither marked nor the path of a file", s.Name, word)
				}
				forms := []string{"nats://user:" + password + "@127.0.0.1:1"}
				if s.Kind == "credential" {
					forms = append(forms, password, password+"\r\n", "a "+password)
				} else if s.Secret {
					forms = append(forms, password+"@127.0.0.1:1", "user:"+password+"@127.0.0.1:1", "nats://user:"+password+",x://y@127.0.0.1:1")
				}
				for _, form := range forms {
					out := run("", l.Program, "--"+s.Name+"="+form, "config", "print")
					if s.Secret && !strings.Contains(out, "# without credentials: "+s.Name+": ") {
						t.Errorf("--%s=%s is not said to be hidden in\n%s", s.Name, form, out)
					}
					run("", l.Program, "--"+s.Name+"="+form, "config", "check")
				}
				if !s.Secret || s.Kind == "credential" {
					continue
				}
				secret++
				for _, form := range append(forms, "nats://user:"+password+"%zz@127.0.0.1:1", "nats://user:"+password+"@127.0.0.1:port",
					"nats://user:"+password+"/@127.0.0.1:1") {
					if out := run("@127.0.0.1:", l.Program, append(start(&l), "--"+s.Name+"="+form)...); !strings.Contains(out, "***@127.0.0.1:") {
						t.Errorf("%s --%s=%s says nothing of where it is to connect:\n%s", l.Program, s.Name, form, out)
					}
				}
			}
			if secret == 0 && l.Program != "kvpods" { // whose URLs are refused with a user
				t.Error("there is no setting that may have a password")
			}
		})
	}
}

// A program that runs shows no secret of its settings either, to operators: neither where it
// shows its settings, nor elsewhere on its admin port, nor in its log.
func TestNoRunningProgramShowsASecret(t *testing.T) {
	const secret = "hunter2hunter2"
	lists, dir := listed(t)
	for _, l := range lists {
		args, secrets := start(&l), 0
		if l.Program == "kvpods" { // where nobody is either
			args = append(args, "--selector=a=b", "--name=n", "--register-at=http://127.0.0.1:1", "--kube-api=http://127.0.0.1:1", "--kube-namespace=n")
		}
		for _, s := range l.Settings {
			switch value := ""; {
			case s.Secret:
				if value = secret; s.Kind != "credential" {
					value = "nats://user:" + secret + "@127.0.0.1:1"
				}
				args = append(args, "--"+s.Name+"="+value)
				secrets++
			case s.Name == "log-level":
				args = append(args, "--log-level=debug")
			}
		}
		if secrets == 0 || !slices.ContainsFunc(l.Settings, func(s conf.Listed) bool { return s.Name == "admin-listen" }) {
			continue
		}
		t.Run(l.Program, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			log := new(waittest.Log)
			cmd := exec.CommandContext(ctx, filepath.Join(dir, l.Program), args...) //nolint:gosec // our own programs
			cmd.Env = []string{"HOME=" + t.TempDir()}
			cmd.Stdout, cmd.Stderr = log, log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cancel(); _ = cmd.Wait() })
			var admin string
			waittest.Until(t, func() error {
				_, rest, _ := strings.Cut(log.String(), `msg="admin port"`)
				line, _, whole := strings.Cut(rest, "\n")
				_, address, _ := strings.Cut(line, " address=")
				if !whole || address == "" {
					return fmt.Errorf("no admin port in %s", log)
				}
				admin = "http://" + address
				return nil
			})
			get := func(path string) (int, string) {
				resp, err := http.Get(admin + path) //nolint:noctx // a program of our own
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp.StatusCode, string(text)
			}
			for _, path := range []string{"/config", "/api/settings", "/readyz?verbose", "/metrics", "/version", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline"} {
				status, text := get(path)
				if strings.Contains(text, secret) {
					t.Errorf("%s shows a secret:\n%s", path, text)
				}
				console := path == "/api/settings" && (l.Program == "kvindexer" || l.Program == "kvrouter")
				if (path == "/config" || console) && (status != http.StatusOK || strings.Count(text, "***") < secrets) {
					t.Errorf("%s: %d, of %d settings with secrets some are not there:\n%s", path, status, secrets, text)
				}
			}
			if text := log.String(); strings.Contains(text, secret) {
				t.Errorf("the log shows a secret:\n%s", text)
			}
		})
	}
}

// credentialWord returns the word of a setting's name by which it may be a secret.
func credentialWord(name string) string {
	for part := range strings.SplitSeq(strings.TrimSuffix(name, "-credential-name"), "-") {
		switch part {
		case "password", "token", "secret", "key", "nkey", "creds", "credentials":
			return part
		}
	}
	return ""
}

// until collects a program's output, and ends it once that has the words.
type until struct {
	words string // "": it ends by itself
	end   func()
	text  strings.Builder
}

func (u *until) Write(b []byte) (int, error) {
	u.text.Write(b)
	if u.words != "" && strings.Contains(u.text.String(), u.words) {
		u.end()
	}
	return len(b), nil
}

// start returns what a program needs beside a broker to start.
func start(l *conf.List) []string {
	var args []string
	for _, s := range l.Settings {
		switch s.Name {
		case "http-listen", "admin-listen":
			args = append(args, "--"+s.Name+"=127.0.0.1:0")
		case "worker", "model", "engine":
			args = append(args, "--"+s.Name+"=tcp://127.0.0.2:1")
		case "wait":
			args = append(args, "--wait=1s")
		}
	}
	if l.Program == "kvctl" {
		args = append(args, "worker", "list")
	}
	return args
}
