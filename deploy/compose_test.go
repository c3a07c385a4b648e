package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvatlas/kvatlas/internal/testing/porttest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// service is what of a service of the compose file matters.
type service struct {
	Image       string
	Entrypoint  []string
	Command     []string
	Environment map[string]string
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	DependsOn   []string `yaml:"depends_on"`
	Ports       []string
	Volumes     []string
	Healthcheck struct{ Test []string }
}

type composeFile struct {
	Services map[string]service
	Volumes  map[string]any
}

func readCompose(t *testing.T) (file composeFile) {
	t.Helper()
	data, err := os.ReadFile("compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	return file
}

// What the compose file starts, as processes: the same programs with the same arguments
// and environment, on this machine's loopback in place of the containers' network. With
// a container runtime make test-deploy runs the file itself.
func TestComposeAsProcesses(t *testing.T) {
	file := readCompose(t)
	first := porttest.Free(t, 3)
	ports := map[string]string{"4222": strconv.Itoa(first), "8090": strconv.Itoa(first + 1), "8000": strconv.Itoa(first + 2)}
	here := strings.NewReplacer("nats://nats:4222", "nats://127.0.0.1:"+ports["4222"], "0.0.0.0:8090", "127.0.0.1:"+ports["8090"],
		"0.0.0.0:8000", "127.0.0.1:"+ports["8000"], "127.0.0.1:8090", "127.0.0.1:"+ports["8090"], "127.0.0.1:8000", "127.0.0.1:"+ports["8000"],
		"--http-host=0.0.0.0", "--http-host=127.0.0.1", "--http-advertise=engines", "--http-advertise=127.0.0.1")
	place := func(name, text string) string {
		text = here.Replace(text)
		if strings.Contains(text, "0.0.0.0") || strings.Contains(text, "://nats") || strings.Contains(text, "engines") {
			t.Fatalf("%s: this test has no place for %q", name, text)
		}
		return text
	}
	// The image's volumes: one each, for what the program keeps.
	dirs := map[string]string{}
	volume := func(name string) string {
		mount := file.Services[name].Volumes
		if len(mount) != 1 {
			t.Fatalf("%s has %d volumes", name, len(mount))
		}
		source, _, _ := strings.Cut(mount[0], ":")
		if _, ok := file.Volumes[source]; !ok {
			t.Errorf("%s: volume %s is not declared", name, source)
		}
		if dirs[source] == "" {
			dirs[source] = t.TempDir()
		}
		return dirs[source]
	}
	s := file.Services["nats"]
	var args []string
	for _, a := range s.Command {
		args = append(args, strings.Replace(a, "/data", volume("nats"), 1))
	}
	run(t, exec.Command(program(t, "nats-server"), append(args, "-a", "127.0.0.1", "-p", ports["4222"])...))
	running := map[string]*process{}
	for name, s := range file.Services {
		if s.Image != "kvatlas" {
			continue
		}
		if !slices.Contains(s.DependsOn, "nats") {
			t.Errorf("%s does not depend on nats", name)
		}
		args := []string{}
		for _, a := range s.Command {
			args = append(args, place(name, a))
		}
		if slices.Contains(s.Entrypoint, "/kvmocker") {
			args = append(args, "--http-port=0") // others on this machine may have 9000
		}
		env := imageEnv(t, volume(name))
		for k, v := range s.Environment {
			env = append(env, k+"="+place(name, v))
		}
		running[name] = run(t, exec.Command(program(t, strings.TrimPrefix(s.Entrypoint[0], "/")), args...), env...)
	}
	for name, s := range file.Services {
		test := s.Healthcheck.Test
		if len(test) == 0 {
			continue
		}
		waittest.Until(t, func() error {
			out, err := exec.Command(program(t, strings.TrimPrefix(test[1], "/")), place(name, test[2]), place(name, test[3])).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s is not healthy: %w: %s", name, err, out)
			}
			return nil
		})
	}
	composeWorks(t, "http://127.0.0.1:"+ports["8090"], "http://127.0.0.1:"+ports["8000"])
	for name, p := range running {
		if code := p.stop(); code != 0 {
			t.Errorf("%s ended with %d", name, code)
		}
	}
}

// composeWorks asks what the file's head says to ask: the second time the prompt is known.
func composeWorks(t *testing.T, indexer, router string) {
	t.Helper()
	ask := func() error {
		body := fmt.Sprintf(`{"model": "mock", "max_tokens": 2, "prompt": %q}`, strings.Repeat("Why is the sky blue? ", 200))
		resp, err := http.Post(router+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return err
	}
	waittest.Until(t, ask) // the engines register once they are up
	waittest.Until(t, func() error {
		text, err := get(t.Context(), indexer+"/v1/workers?model=mock")
		if err != nil {
			return err
		}
		var m struct {
			Spaces []struct {
				Workers []struct {
					State  string
					Blocks uint64
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			return err
		}
		live, blocks := 0, uint64(0)
		for _, sp := range m.Spaces {
			for _, w := range sp.Workers {
				if blocks += w.Blocks; w.State == "live" {
					live++
				}
			}
		}
		if live != 4 || blocks == 0 {
			return fmt.Errorf("%d workers with %d blocks, want the 4 engines", live, blocks)
		}
		return nil
	})
	if err := ask(); err != nil {
		t.Error(err)
	}
}

// The file itself, where there is a container runtime.
func TestComposeInContainers(t *testing.T) {
	if os.Getenv("KVATLAS_TEST_DEPLOY") != "1" {
		t.Skip("skipped: make test-deploy runs it")
	}
	if out, err := exec.Command("docker", "compose", "ls").CombinedOutput(); err != nil {
		t.Skipf("skipped: there is no container runtime with compose: %.200s", out)
	}
	compose := func(args ...string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, "docker", append([]string{"compose", "-p", "kvatlas-test", "-f", "compose.yaml"}, args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("docker compose %v: %w\n%s", args, err, out)
		}
		return nil
	}
	t.Cleanup(func() {
		if err := compose("down", "-v"); err != nil {
			t.Error(err)
		}
	})
	if err := compose("up", "--build", "--wait", "-d"); err != nil {
		t.Fatal(err)
	}
	composeWorks(t, "http://127.0.0.1:8090", "http://127.0.0.1:8000")
}
