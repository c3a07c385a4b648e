package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// example is a program's settings, one of each kind.
type example struct {
	NATS    string
	Format  string
	Peer    string
	Verbose bool
	Shards  int
	Weight  float64
	Timeout time.Duration
	Budget  int64
	Allow   []string
}

func exampleSet(c *example) *Set {
	s := New("kvexample", "An example.")
	s.Group("Broker")
	s.String(&c.NATS, "nats", "embedded", "Where the broker is.", Secret())
	s.String(new(string), "data-dir", "/home/me/data", "Where data is.", ShowDefault("~/data"))
	s.String(&c.Peer, "peer", "", "Where another one is.")
	s.Group("Other")
	s.String(&c.Format, "log-format", "text", "Form of log lines.", OneOf("text", "json"))
	s.Bool(&c.Verbose, "verbose", false, "Says more.")
	s.Int(&c.Shards, "shards", 2, "Owner goroutines.", Between(1, 256))
	s.Float(&c.Weight, "weight", 0.5, "Weight of overlap.", Between(0.0, 1.0))
	s.Duration(&c.Timeout, "timeout", 10*time.Second, "Time to read.", Between(time.Millisecond, time.Hour))
	s.Bytes(&c.Budget, "budget", 8<<30, "Memory.")
	s.List(&c.Allow, "allow", []string{"a", "b"}, "Who may.")
	return s
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultsFillTheVariables(t *testing.T) {
	var c example
	proceed, err := exampleSet(&c).Run(nil, nil, nil)
	if !proceed || err != nil {
		t.Fatal(proceed, err)
	}
	want := example{NATS: "embedded", Format: "text", Shards: 2, Weight: 0.5,
		Timeout: 10 * time.Second, Budget: 8 << 30, Allow: []string{"a", "b"}}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
}

func TestEachSourceWinsOverTheOneBelow(t *testing.T) {
	path := writeFile(t, "nats: from-file\nshards: 3\nbudget: 1GiB\n")
	var c example
	s := exampleSet(&c)
	proceed, err := s.Run(
		[]string{"--nats", "from-flag", "--config=" + path},
		[]string{"KVATLAS_NATS=from-env", "KVATLAS_SHARDS=4", "HOME=/", "KVATLAS_WEIGHT=", "KVATLAS_TEST_SCALE=9"}, nil)
	if !proceed || err != nil {
		t.Fatal(proceed, err)
	}
	if c.NATS != "from-flag" || c.Shards != 4 || c.Budget != 1<<30 || c.Weight != 0.5 {
		t.Errorf("got %+v", c)
	}
	for name, want := range map[string]string{
		"nats": "flag --nats", "shards": "environment KVATLAS_SHARDS",
		"budget": "file " + path + " line 3, budget", "weight": "default",
	} {
		if got := s.Source(name); got != want {
			t.Errorf("source of %s: %q, want %q", name, got, want)
		}
	}
}

func TestConfigFileMayComeFromTheEnvironment(t *testing.T) {
	var c example
	path := writeFile(t, "# nothing but\nverbose: true\n")
	if _, err := exampleSet(&c).Run(nil, []string{"KVATLAS_CONFIG=" + path}, nil); err != nil || !c.Verbose {
		t.Errorf("verbose %v, error %v", c.Verbose, err)
	}
}

func TestEveryKindReadsFromEverySource(t *testing.T) {
	values := map[string]string{
		"nats": "x y", "peer": "s3", "log-format": "json", "verbose": "true", "shards": "7",
		"weight": "0.25", "timeout": "1m30s", "budget": "1.5KiB", "allow": "p, q ,",
	}
	want := example{NATS: "x y", Peer: "s3", Format: "json", Verbose: true, Shards: 7, Weight: 0.25,
		Timeout: 90 * time.Second, Budget: 1536, Allow: []string{"p", "q"}}
	var args, env []string
	var file strings.Builder
	for name, v := range values {
		args = append(args, "--"+name+"="+v)
		env = append(env, (&Setting{Name: name}).Env()+"="+v)
		file.WriteString(name + ": \"" + v + "\"\n")
	}
	for name, run := range map[string]func(*Set) (bool, error){
		"flags":       func(s *Set) (bool, error) { return s.Run(args, nil, nil) },
		"environment": func(s *Set) (bool, error) { return s.Run(nil, env, nil) },
		"file": func(s *Set) (bool, error) {
			return s.Run([]string{"--config", writeFile(t, file.String())}, nil, nil)
		},
	} {
		var c example
		if proceed, err := run(exampleSet(&c)); !proceed || err != nil {
			t.Errorf("%s: %v %v", name, proceed, err)
		}
		if !reflect.DeepEqual(c, want) {
			t.Errorf("%s: got %+v, want %+v", name, c, want)
		}
	}
}

func TestYAMLSequencesAreLists(t *testing.T) {
	var c example
	path := writeFile(t, "allow: [x, 7]\ntimeout: 5s\nshards: 9 # comment\n")
	if _, err := exampleSet(&c).Run([]string{"--config", path}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.Allow, []string{"x", "7"}) || c.Shards != 9 {
		t.Errorf("got %+v", c)
	}
}

func TestBadInputIsRefusedWithItsSource(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		env  []string
		file string
		want string // part of the message
	}{
		{name: "unknown flag", args: []string{"--shard", "3"}, want: "unknown flag --shard; the nearest is --shards"},
		{name: "unknown variable", env: []string{"KVATLAS_SHARDZ=3"}, want: "unknown environment variable KVATLAS_SHARDZ; the nearest is KVATLAS_SHARDS"},
		{name: "unknown key", file: "nats: x\nnat: y\n", want: `line 2: unknown key "nat"; the nearest is "nats"`},
		{name: "flag without value", args: []string{"--nats"}, want: "flag --nats needs a value"},
		{name: "stray word", args: []string{"config", "prin"}, want: `unexpected argument "config prin"; the nearest command is "config print"`},
		{name: "bool followed by another word", args: []string{"--verbose", "no"}, want: `unexpected argument "no"`},
		{name: "not an int", args: []string{"--shards=3.5"}, want: `flag --shards: "3.5" is not a whole number`},
		{name: "int overflow", args: []string{"--shards=99999999999999999999"}, want: "is out of range"},
		{name: "below the limit", env: []string{"KVATLAS_SHARDS=0"}, want: "environment KVATLAS_SHARDS: 0 is not between 1 and 256"},
		{name: "above the limit", args: []string{"--weight=1.5"}, want: "1.5 is not between 0 and 1"},
		{name: "not a number", args: []string{"--weight=NaN"}, want: `"NaN" is not a finite number`},
		{name: "duration without unit", args: []string{"--timeout=5"}, want: `"5" is not a duration`},
		{name: "negative duration", args: []string{"--timeout=-5s"}, want: "is negative"},
		{name: "not a size", args: []string{"--budget=8 gigs"}, want: "is not a size"},
		{name: "not a bool", args: []string{"--verbose=yes"}, want: `"yes" is not true or false`},
		{name: "not allowed", args: []string{"--log-format=xml"}, want: `"xml" is not one of text, json`},
		{name: "missing file", args: []string{"--config=/nonexistent/x.yaml"}, want: "opening the settings file"},
		{name: "broken YAML", file: "nats: [", want: "settings file"},
		{name: "YAML list of scalars", file: "- a\n", want: `line 1: write one "name: value" a line`},
		{name: "two documents", file: "nats: x\n---\nnats: y\n", want: "more than one document"},
		{name: "twice", file: "nats: x\nnats: y\n", want: "twice"},
		{name: "null", file: "nats:\n", want: "no value"},
		{name: "nested", file: "nats: {url: x}\n", want: "not a single value"},
		{name: "sequence for a scalar", file: "nats: [x]\n", want: "not a single value"},
		{name: "file naming a file", file: "config: y\n", want: "cannot name another"},
		{name: "bad value in file", file: "verbose: true\nshards: many\n", want: "line 2, shards: \"many\" is not a whole number"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := tc.args
			if tc.file != "" {
				args = append(args, "--config", writeFile(t, tc.file))
			}
			var c example
			proceed, err := exampleSet(&c).Run(args, tc.env, nil)
			if proceed || err == nil {
				t.Fatalf("accepted: %+v", c)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %q, want %q in it", err, tc.want)
			}
		})
	}
}

func TestHelpListsEverySettingWithItsDefault(t *testing.T) {
	var c example
	s := exampleSet(&c)
	var out strings.Builder
	// Help is given even beside mistakes.
	proceed, err := s.Run([]string{"config", "--help"}, []string{"KVATLAS_X=1"}, &out)
	if proceed || err != nil {
		t.Fatal(proceed, err)
	}
	for _, x := range s.Settings() {
		if !strings.Contains(out.String(), "--"+x.Name+" "+x.Kind) {
			t.Errorf("no --%s in help", x.Name)
		}
	}
	for _, want := range []string{
		"\nBroker\n", "\nOther\n", `--nats string (default "embedded")`, "--budget bytes (default 8GiB)", "--data-dir string (default ~/data)",
		"--timeout duration (default 10s)", "One of: text, json.", "config print",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	for line := range strings.SplitSeq(out.String(), "\n") {
		if len(line) > 100 {
			t.Errorf("long line: %q", line)
		}
	}
}

func TestPrintHidesCredentialsAndReadsBack(t *testing.T) {
	var c, back example
	var out strings.Builder
	args := []string{"config", "print", "--log-format", "json", "--timeout=90s", "--allow=x,http://u:hunter2@h,b@c", "--budget=3MiB", "--peer=a: \"@b\"\n#c"}
	proceed, err := exampleSet(&c).Run(args, []string{"KVATLAS_NATS=u:hunter2@h:4222"}, &out)
	if proceed || err != nil {
		t.Fatal(proceed, err)
	}
	for _, want := range []string{
		"# without credentials: nats: \"***@h:4222\" # environment KVATLAS_NATS\n",
		"# without credentials: allow: \"***@c\" # flag --allow\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("the password is in:\n%s", out.String())
	}
	if _, err := exampleSet(&back).Run([]string{"--config", writeFile(t, out.String())}, nil, nil); err != nil {
		t.Fatal(err)
	}
	c.NATS, c.Allow = back.NATS, back.Allow
	if !reflect.DeepEqual(c, back) {
		t.Errorf("printed %+v, read back %+v", c, back)
	}
}

// Whatever is wrong with a value or its place, the error shows no credentials.
func TestErrorsHideCredentials(t *testing.T) {
	for _, args := range [][]string{
		{"--nats=u:hunter2@h"}, {"--allow=http://u:hunter2@h"}, {"--shards=http://u:hunter2@h"}, {"http://u:hunter2@h"},
		{"--natz:u:hunter2@h"}, {"--config", writeFile(t, "allow: [\"http://u:hunter2,@h\"]")}, {"--config", writeFile(t, "nats: {\"http://u:hunter2@h\": 1}")},
	} {
		var c example
		s := exampleSet(&c)
		for _, name := range []string{"nats", "allow"} {
			s.byName[name].check = append(s.byName[name].check, func(v any) error { return fmt.Errorf("%v is wrong", v) })
		}
		if _, err := s.Run(args, nil, nil); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestHideCredentials(t *testing.T) {
	for in, want := range map[string]string{
		"embedded": "embedded", "nats://h:1": "nats://h:1", "u:p@h:1": "***@h:1", "t@h": "***@h",
		"nats://u:p@h:1,tls://x@y:2":    "nats://***@y:2",
		"nats://h:1, nats://u:p@h2:3/":  "nats://***@h2:3/",
		"nats://u:p@with@sign@h:1,h2:3": "nats://***@h:1,h2:3",
		"nats://u:p,q/r://s@h":          "nats://***@h",
		"nats://u:p,q://s@h":            "nats://***@h",
		"nats://u:p,q://s":              "nats://u:p,q://s",
		"h1:1,u:p@h2,nats://h3":         "***@h2,nats://h3",
	} {
		if got := HideCredentials(in); got != want {
			t.Errorf("HideCredentials(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestKubernetesServiceLinksAreNotSettings(t *testing.T) {
	var c example
	links := []string{
		"KVATLAS_SERVICE_HOST=10.0.0.1", "KVATLAS_INDEXER_SERVICE_PORT=80", "KVATLAS_INDEXER_SERVICE_PORT_HTTP=80",
		"KVATLAS_INDEXER_PORT=tcp://10.0.0.1:80", "KVATLAS_INDEXER_PORT_80_TCP=tcp://10.0.0.1:80",
		"KVATLAS_INDEXER_PORT_80_TCP_ADDR=10.0.0.1", "KVATLAS_INDEXER_PORT_80_UDP_PROTO=udp",
		"KVATLAS_NATS_PORT=tcp://10.0.0.2:4222", "KVATLAS_NATS_PORT_4222_TCP_PORT=4222",
	}
	set, port := exampleSet(&c), 0
	set.Int(&port, "nats-port", 7, "Its port.", Between(0, 65535))
	if proceed, err := set.Run(nil, links, nil); !proceed || err != nil || port != 7 {
		t.Error(port, err)
	}
	if _, err := exampleSet(&c).Run(nil, []string{"KVATLAS_PORT=80"}, nil); err == nil {
		t.Error("KVATLAS_PORT=80 is no service link and was accepted")
	}
}

// One environment and one file serve several programs: each takes what is its
// own, leaves what only others know, and refuses what nobody knows.
func TestProgramsShareAnEnvironment(t *testing.T) {
	env := []string{
		"KVATLAS_NATS=shared", "KVATLAS_EXAMPLE_NATS=own", "KVATLAS_LOG_FORMAT=json",
		"KVATLAS_OVERLAP_WEIGHT=2", "KVATLAS_ROUTER_NATS=routers", "KVATLAS_SOCKET=/run/x",
	}
	path := writeFile(t, "overlap-weight: 3\nverbose: true\n")
	var c example
	s := exampleSet(&c)
	var out strings.Builder
	if _, err := s.Run([]string{"config", "print", "--config", path}, env, &out); err != nil {
		t.Fatal(err)
	}
	if c.NATS != "own" || c.Format != "json" || !c.Verbose || s.Source("nats") != "environment KVATLAS_EXAMPLE_NATS" {
		t.Errorf("%+v, nats from %s", c, s.Source("nats"))
	}
	want := []Foreign{
		{What: "the variable KVATLAS_OVERLAP_WEIGHT", Programs: []string{"kvrouter"}},
		{What: "the variable KVATLAS_ROUTER_NATS", Programs: []string{"kvrouter"}},
		{What: "the variable KVATLAS_SOCKET", Programs: []string{"kvpublisher"}},
		{What: "the key overlap-weight of " + path, Programs: []string{"kvrouter"}, InFile: true},
	}
	if !reflect.DeepEqual(s.Foreign(), want) {
		t.Errorf("left to others: %v", s.Foreign())
	}
	if !strings.Contains(out.String(), "# the variable KVATLAS_SOCKET is a setting of kvpublisher, not of this program\n") {
		t.Errorf("not said in\n%s", out.String())
	}
	if _, err := exampleSet(&c).Run(nil, []string{"KVATLAS_EXAMPLE_NATZ=x"}, nil); err == nil ||
		!strings.Contains(err.Error(), "KVATLAS_EXAMPLE_NATZ; the nearest is KVATLAS_EXAMPLE_NATS") {
		t.Error(err)
	}
}

func TestListIsJSONWithLimits(t *testing.T) {
	var c example
	var out strings.Builder
	if _, err := exampleSet(&c).Run([]string{"config", "list"}, nil, &out); err != nil {
		t.Fatal(err)
	}
	var l List
	if err := json.Unmarshal([]byte(out.String()), &l); err != nil || l.Program != "kvexample" || len(l.Settings) != 11 {
		t.Fatalf("%v: %s", err, out.String())
	}
	byName := map[string]Listed{}
	for _, x := range l.Settings {
		byName[x.Name] = x
	}
	if x := byName["timeout"]; x.Least != "1ms" || x.Most != "1h" || x.Default != "10s" || x.Own != "KVATLAS_EXAMPLE_TIMEOUT" ||
		x.Environment != "KVATLAS_TIMEOUT" || x.Group != "Other" {
		t.Errorf("%+v", x)
	}
	if x := byName["nats"]; !x.Secret || x.Default != "embedded" || byName["peer"].Secret {
		t.Errorf("%+v", x)
	}
	if x := byName["data-dir"]; x.Default != "~/data" {
		t.Errorf("%+v", x)
	}
}

func TestABoolMayHaveItsValueBehindIt(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want bool
	}{
		{[]string{"--verbose"}, true},
		{[]string{"--verbose", "true"}, true},
		{[]string{"--verbose=true", "--verbose", "false"}, false},
		{[]string{"--verbose", "false", "--nats", "x"}, false},
		{[]string{"--verbose", "--nats", "false"}, true},
	} {
		var c example
		if _, err := exampleSet(&c).Run(tc.args, nil, nil); err != nil || c.Verbose != tc.want {
			t.Errorf("%v: %v %v", tc.args, c.Verbose, err)
		}
	}
}

// What a program has to say of its settings together is said by a start and by
// config check alike, and only once each setting is good by itself.
func TestChecksOfSettingsTogether(t *testing.T) {
	with := func(args ...string) (bool, string, error) {
		var c example
		s := exampleSet(&c)
		s.Check(func() error {
			if c.Verbose && c.Format == "json" {
				return errors.New("--verbose needs --log-format text")
			}
			return nil
		})
		var out strings.Builder
		proceed, err := s.Run(args, nil, &out)
		return proceed, out.String(), err
	}
	bad := []string{"--verbose", "--log-format=json"}
	_, _, started := with(bad...)
	_, _, checked := with(append(bad, "config", "check")...)
	if started == nil || checked == nil || started.Error() != "--verbose needs --log-format text" || !strings.HasSuffix(checked.Error(), started.Error()) {
		t.Errorf("a start says %v, config check %v", started, checked)
	}
	if _, _, err := with("--shards=0", "--verbose", "--log-format=json"); err == nil || !strings.Contains(err.Error(), "--shards") {
		t.Error(err)
	}
	if proceed, _, err := with("--verbose"); !proceed || err != nil {
		t.Error(proceed, err)
	}
	if _, out, err := with(append(bad, "config", "print")...); err != nil || !strings.Contains(out, "verbose: true") {
		t.Errorf("what is wrong cannot be looked at: %v %q", err, out)
	}
}

func TestCommandsAndArguments(t *testing.T) {
	var c example
	s := exampleSet(&c)
	s.Command("version", "print the version", func() (string, error) { return "v1\n", nil })
	var out strings.Builder
	// A command that reads no settings works though they are wrong.
	if proceed, err := s.Run([]string{"version", "--shards=0"}, nil, &out); proceed || err != nil || out.String() != "v1\n" {
		t.Errorf("%v %v %q", proceed, err, out.String())
	}
	out.Reset()
	if proceed, err := s.Run([]string{"--shards=0", "--version"}, nil, &out); proceed || err != nil || out.String() != "v1\n" {
		t.Errorf("%v %v %q", proceed, err, out.String())
	}
	if _, err := exampleSet(&c).Run([]string{"--version"}, nil, nil); err == nil {
		t.Error("--version was accepted by a program without the command")
	}
	if proceed, err := s.Run([]string{"config", "check", "--shards=0"}, nil, &out); proceed || err == nil {
		t.Errorf("check accepted --shards=0")
	}
	s.TakeArgs("<word>")
	proceed, err := s.Run([]string{"a", "--shards", "5", "--", "--b"}, nil, nil)
	if !proceed || err != nil || !reflect.DeepEqual(s.Args(), []string{"a", "--b"}) || c.Shards != 5 {
		t.Errorf("%v %v %v", proceed, err, s.Args())
	}
}

func TestMistakesInDeclarationsAreReported(t *testing.T) {
	var n int
	for want, declare := range map[string]func(*Set){
		"declared twice": func(s *Set) { s.Int(&n, "n", 1, "N."); s.Int(&n, "n", 1, "N.") },
		"not a name":     func(s *Set) { s.Int(&n, "N", 1, "N.") },
		"no help":        func(s *Set) { s.Int(&n, "n", 1, "") },
		"not between":    func(s *Set) { s.Int(&n, "n", 0, "N.", Between(1, 2)) },
		"do not fit":     func(s *Set) { s.Int(&n, "n", 1, "N.", Between(1.0, 2.0)) },
	} {
		s := New("x", "X.")
		declare(s)
		if _, err := s.Run(nil, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestSizesReadBackAsWritten(t *testing.T) {
	for _, n := range []int64{0, 1, 1023, 1024, 1536, 1 << 20, 8 << 30, 3 << 40, 1e9, 1<<63 - 1} {
		if got, err := ParseBytes(FormatBytes(n)); err != nil || got != n {
			t.Errorf("%d is written %s and read %d, %v", n, FormatBytes(n), got, err)
		}
	}
	for text, want := range map[string]int64{"1kB": 1000, "2 MiB": 2 << 20, "0.5KiB": 512, "10B": 10} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "GiB", "-1", "+1", "1e3", "1.2.3", "0x10", "9223372036854775808", "8EiB", "0.3B", "1/2"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, seed := range []string{"8GiB", "1.5 kB", "", "..", "99999999999TiB"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseBytes(text)
		if err != nil {
			return
		}
		if back, err := ParseBytes(FormatBytes(n)); n < 0 || err != nil || back != n {
			t.Errorf("%q is %d, back %d, %v", text, n, back, err)
		}
	})
}

// A credential is itself for who asks for it, and nothing else shows it.
func TestCredentialsAreNotShown(t *testing.T) {
	var c Credential
	s := New("x", "X.")
	s.Credential(&c, "engine-token", "A token.")
	s.byName["engine-token"].check = []func(any) error{func(v any) error {
		if strings.Contains(v.(Credential).Reveal(), "bad") { //nolint:forcetypeassert // it is one
			return fmt.Errorf("%v %q %+v %#v %s %x is bad", v, v, v, v, v, v)
		}
		return nil
	}}
	var out strings.Builder
	if _, err := s.Run([]string{"config", "print"}, []string{"KVATLAS_ENGINE_TOKEN=hunter2"}, &out); err != nil || c.Reveal() != "hunter2" {
		t.Fatal(c.Reveal(), err)
	}
	data, err := json.Marshal(struct{ C Credential }{c})
	if err != nil {
		t.Fatal(err)
	}
	shown := out.String() + fmt.Sprintf("%v %q %+v %#v %s %x", c, c, c, struct{ C Credential }{c}, c, c) + string(data) + c.LogValue().String()
	if strings.Contains(shown, "hunter2") || strings.Contains(shown, "68756e74657232") || !strings.Contains(out.String(), `# without credentials: engine-token: "***" # environment`) {
		t.Error(shown)
	}
	if _, err := s.Run([]string{"--engine-token=bad-hunter2"}, nil, &out); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

// What a program says of its settings together, and what it fails with, has no credentials of
// them either; nor what stands beside one by mistake.
func TestWhatIsWrongIsSaidWithoutCredentials(t *testing.T) {
	wrong := errors.New("the error")
	of := func() (*Set, *example, *Credential) {
		c, key := new(example), new(Credential)
		s := exampleSet(c)
		s.Credential(key, "engine-token", "What engines are shown.")
		s.Check(func() error {
			return fmt.Errorf("%w: %q of %q and %v, key %s", wrong, c.Peer, c.NATS, c.Allow, key.Reveal())
		})
		return s, c, key
	}
	args := []string{"--nats=u:hunter2@h:1,v:hunter2@i", "--peer", "tcp://u:hunter2@h/p", "--allow=a@b,http://u:hunter2@h,http://v:hunter2@i", "--engine-token=hunter2hunter2"}
	for _, words := range [][]string{nil, {"config", "check"}} {
		s, _, _ := of()
		_, err := s.Run(append(words, args...), nil, nil)
		if !errors.Is(err, wrong) || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "tcp://***@h/p") {
			t.Errorf("%q: %v", words, err)
		}
		if err := s.HideIn(wrong); err != wrong { //nolint:errorlint // the very one
			t.Errorf("nothing to hide makes %v", err)
		}
	}
	for _, args := range [][]string{{"--engine-token", "Bearer", "hunter2"}, {"--engine-token hunter2"}, {"--engine-token\thunter2"}, {"hunter2", "--engine-token=x"}} {
		s, _, _ := of()
		if _, err := s.Run(args, nil, nil); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
