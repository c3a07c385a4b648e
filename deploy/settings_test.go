package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every program accepts what the compose file gives it.
func TestComposeGivesSettingsThatThereAre(t *testing.T) {
	file := readCompose(t)
	ours := 0
	for name, s := range file.Services {
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s is open to the network: %s", name, port)
			}
		}
		if s.Image != "kvatlas" {
			continue
		}
		ours++
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || len(s.Entrypoint) != 1 || len(s.Volumes) != 1 {
			t.Errorf("%s: %+v", name, s)
			continue
		}
		var env []string
		for k, v := range s.Environment {
			env = append(env, k+"="+v)
		}
		accepts(t, strings.TrimPrefix(s.Entrypoint[0], "/"), s.Command, env)
		if test := s.Healthcheck.Test; len(test) > 2 {
			accepts(t, strings.TrimPrefix(test[1], "/"), nil, nil)
		}
	}
	if ours != 3 {
		t.Errorf("%d services of ours", ours)
	}
}

// The programs accept what the units give them, and systemd the units.
func TestUnits(t *testing.T) {
	for name, env := range map[string][]string{
		"kvindexer": nil, "kvrouter": nil,
		"kvpublisher@": {"KVATLAS_PUBLISHER_MODEL=m", "KVATLAS_PUBLISHER_SOCKET=/run/x"},
	} {
		text, err := os.ReadFile(filepath.Join("systemd", name+".service"))
		if err != nil {
			t.Fatal(err)
		}
		filled := strings.NewReplacer("%i", "engine-0", "%t", "/run").Replace(string(text))
		unit := strings.TrimSuffix(name, "@")
		for line := range strings.Lines(filled) {
			if settings, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment="); ok {
				env = append(env, strings.Fields(settings)...)
			}
		}
		if len(env) == 0 || !strings.Contains(filled, "\nExecStart=/usr/bin/"+unit+"\n") {
			t.Errorf("%s starts something else:\n%s", name, filled)
		}
		accepts(t, unit, nil, env)
		for _, line := range []string{"Type=notify", "NotifyAccess=main", "WatchdogSec=", "User=kvatlas", "StateDirectory=kvatlas", "NoNewPrivileges=yes"} {
			if !strings.Contains(filled, "\n"+line) {
				t.Errorf("%s: no %s", name, line)
			}
		}
		verify(t, strings.Replace(name, "@", "@engine-0", 1), strings.ReplaceAll(filled, "/usr/bin/", filepath.Dir(program(t, "kvindexer"))+"/"))
	}
}

const verifier = "systemd-analyze" //nolint:misspell // its name

// verify lets systemd read a unit, where there is a systemd.
func verify(t *testing.T, name, text string) {
	t.Helper()
	if _, err := exec.LookPath(verifier); err != nil {
		t.Logf("%s is not verified: no %s here", name, verifier)
		return
	}
	file := filepath.Join(t.TempDir(), name+".service")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(verifier, "verify", "--man=no", file).CombinedOutput()
	var about []string
	for line := range strings.Lines(string(out)) { // not about other units of the machine
		if strings.Contains(line, name) {
			about = append(about, line)
		}
	}
	if len(about) > 0 {
		t.Errorf("%s: %v\n%s", name, err, fmt.Sprint(about))
	}
}

// Every program of the Dockerfile is there to be built.
func TestTheDockerfileBuildsWhatThereIs(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for word := range strings.FieldsSeq(string(text)) {
		if strings.HasPrefix(word, "./cmd/") {
			n++
			if _, err := os.Stat(filepath.Join("..", word, "main.go")); err != nil {
				t.Error(err)
			}
		}
	}
	if n != 6 {
		t.Errorf("%d programs", n)
	}
	for _, line := range []string{"\nENV CGO_ENABLED=0\n", "\nFROM scratch\n", "\nUSER 65532:65532\n", "\nENV STATE_DIRECTORY=/var/lib/kvatlas\n", "\nENV TMPDIR=/var/lib/kvatlas\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("no %q", line)
		}
	}
}
