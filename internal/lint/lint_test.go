package lint

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// TestModule holds every file of the module to the rules.
func TestModule(t *testing.T) {
	files, err := load(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 5 {
		t.Fatalf("found %d files; the rules look at the wrong folder", len(files))
	}
	for _, f := range files {
		report(t, checkLibrary(f))
		report(t, checkLength(f))
		report(t, checkSleep(f))
		report(t, checkClock(f))
		report(t, checkUnraced(f))
	}
	report(t, checkDocs(files))
	faults, err := checkLinks(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	report(t, faults)
	design, err := os.ReadFile("../../DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	ls, err := layers(string(design))
	if err != nil {
		t.Fatal(err)
	}
	report(t, checkLayers(files, ls))
	locking, err := os.ReadFile("../../LOCKING.md")
	if err != nil {
		t.Fatal(err)
	}
	order, locks, err := lockOrder(string(locking))
	if err != nil {
		t.Fatal(err)
	}
	report(t, checkLocks(files, order, locks))
}

func report(t *testing.T, faults []string) {
	t.Helper()
	for _, f := range faults {
		t.Error(f)
	}
}

// TestRules shows that each rule finds what it is for, and only that.
func TestRules(t *testing.T) {
	const doc = "// Package p is here for the rules' own test.\n"
	cases := []struct {
		name, file, src string
		want            string // part of the only fault; empty for none
	}{
		{"panic", "p/a.go", doc + "package p\nfunc f() { panic(1) }", "panic in a library"},
		{"println", "p/a.go", doc + "package p\nfunc f() { println(1) }", "println in a library"},
		{"exit", "p/a.go", doc + "package p\nimport \"os\"\nfunc f() { os.Exit(1) }", "os.Exit"},
		{"fatal", "p/a.go", doc + "package p\nimport \"log\"\nfunc f() { log.Fatalf(\"\") }", "log.Fatalf"},
		{"print", "p/a.go", doc + "package p\nimport \"fmt\"\nfunc f() { fmt.Println() }", "fmt.Println"},
		{"renamed import", "p/a.go", doc + "package p\nimport out \"fmt\"\nfunc f() { out.Printf(\"\") }", "out.Printf"},
		{"other fmt", "p/a.go", doc + "package p\nimport \"fmt\"\nvar e = fmt.Errorf(\"e\")", ""},
		{"own type named os", "p/a.go", doc + "package p\ntype x struct{}\nfunc (x) Exit(int) {}\nfunc f(os x) { os.Exit(1) }", ""},
		{"command", "cmd/c/a.go", doc + "package main\nimport \"os\"\nfunc main() { os.Exit(1) }", ""},
		{"test panics", "p/a_test.go", doc + "package p\nfunc f() { panic(1) }", ""},
		{"long", "p/a.go", doc + "package p\n" + strings.Repeat("\n", maxLines), "split it"},
		{"long test", "p/a_test.go", doc + "package p\n" + strings.Repeat("\n", maxLines), ""},
		{"sleep", "p/a_test.go", doc + "package p\nimport \"time\"\nfunc f() { time.Sleep(1) }", "time.Sleep"},
		{"sleep in a bubble", "p/a_test.go", doc + "package p\nimport (\n\"testing\"\n\"testing/synctest\"\n\"time\")\nfunc f(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1) }) }", ""},
		{"sleep in a library", "p/a.go", doc + "package p\nimport \"time\"\nfunc f() { time.Sleep(1) }", ""},
		{"seeds in a helper", "p/a_test.go", doc + "package p\nimport \"x/coretest\"\nfunc f() { coretest.Seeds(9) }", "outside of a test"},
		{"few in a method", "p/a_test.go", doc + "package p\nimport \"x/racetest\"\ntype s int\nfunc (s) TestX() { racetest.Few(9) }", "outside of a test"},
		{"seeds in a test", "p/a_test.go", doc + "package p\nimport (\n\"testing\"\n\"x/coretest\")\nfunc TestX(t *testing.T) { func() { coretest.Seeds(9) }() }", ""},
		{"seeds in a helper of core", "core/a_test.go", doc + "package p\nimport \"x/coretest\"\nfunc f() { coretest.Seeds(9) }", ""},
		{"too long", "p/a_test.go", doc + "package p\nimport \"time\"\nfunc f() bool { at := time.Now()\ntook := time.Since(at)\nif took > time.Second { return false }; return true }", "by the clock"},
		{"too long at once", "p/a_test.go", doc + "package p\nimport \"time\"\nfunc f(at time.Time) bool { if took := time.Since(at) / 2; 40 < took { return false }; return true }", "by the clock"},
		{"too long between", "p/a_test.go", doc + "package p\nimport \"time\"\nfunc f(at time.Time) bool { end := time.Now(); if x := 1; x > 2 || end.Sub(at) > 40 { return false }; return true }", "by the clock"},
		{"too long, of cases", "p/a_test.go", doc + "package p\nimport \"time\"\nfunc f(at time.Time) { switch d := time.Since(at); { case d > 1: f(at) } }", "by the clock"},
		{"too long in a file that may", "ingest/sim_test.go", doc + "package p\nimport \"time\"\nfunc f(at time.Time) bool { if time.Since(at) > 40 { return false }; return true }", ""},
		{"too long in a bubble", "p/a_test.go", doc + "package p\nimport (\n\"testing\"\n\"testing/synctest\"\n\"time\")\nfunc f(t *testing.T) { synctest.Test(t, func(t *testing.T) { if time.Since(time.Now()) > 1 { t.Fail() } }) }", ""},
		{"too short", "p/a_test.go", doc + "package p\nimport \"time\"\nfunc f(at time.Time) bool { if time.Since(at) < time.Second { return false }; return true }", ""},
		{"waits", "p/a_test.go", doc + "package p\nimport \"time\"\nfunc f(at time.Time) bool { return time.Since(at) > time.Second }", ""},
		{"test support panics", "ptest/a.go", "// Package ptest is.\npackage ptest\nfunc f() { panic(1) }", ""},
		{"no doc", "p/a.go", "package p", "no package comment"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, err := parse(c.file, []byte(c.src))
			if err != nil {
				t.Fatal(err)
			}
			faults := append(checkLibrary(f), checkLength(f)...)
			faults = append(faults, checkSleep(f)...)
			faults = append(faults, checkClock(f)...)
			faults = append(faults, checkUnraced(f)...)
			faults = append(faults, checkDocs([]*file{f})...)
			switch {
			case c.want == "" && len(faults) > 0:
				t.Errorf("faults in good source: %q", faults)
			case c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)):
				t.Errorf("faults %q, want one with %q", faults, c.want)
			}
		})
	}
}

func TestTwoPackageComments(t *testing.T) {
	a, _ := parse("p/a.go", []byte("// Package p is one.\npackage p"))
	b, _ := parse("p/b.go", []byte("// Package p is two.\npackage p"))
	if faults := checkDocs([]*file{a, b}); len(faults) != 1 {
		t.Errorf("faults %q, want one", faults)
	}
}

func TestLinks(t *testing.T) {
	files := fstest.MapFS{
		"README.md": {Data: []byte("# Here\n[a](p/a.go) [web](https://example.com/x) [there](p/a.go#L1) [section](#here) [doc](docs/a.md#a-b-c) [gone](p/b.go)")},
		"docs/a.md": {Data: []byte("## A `b`, /c\n[up](../README.md) [itself](a.md) [no such](#d) [nor here](../README.md#there)")},
		"p/a.go":    {}, ".hidden/a.md": {Data: []byte("[x](y)")},
	}
	faults, err := checkLinks(files)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"README.md: links to p/b.go", "docs/a.md: links to #d of docs/a.md", "docs/a.md: links to #there of README.md"}
	if len(faults) != len(want) {
		t.Fatalf("faults %q", faults)
	}
	for i := range want {
		if !strings.Contains(faults[i], want[i]) {
			t.Errorf("fault %q, want %q", faults[i], want[i])
		}
	}
}

// TestLoadSkips: generated folders, test data and other modules are not ours.
func TestLoadSkips(t *testing.T) {
	good := &fstest.MapFile{Data: []byte("package p")}
	bad := &fstest.MapFile{Data: []byte("not Go")}
	files, err := load(fstest.MapFS{
		"p/a.go": good, ".hidden/a.go": bad, "p/testdata/a.go": bad,
		"other/go.mod": bad, "other/a.go": bad, "bin/a.go": bad, "p/notes.txt": bad,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 || files[0].name != "p/a.go" {
		t.Errorf("loaded %d files, want p/a.go alone", len(files))
	}
	if _, err := load(fstest.MapFS{"p/a.go": bad}); err == nil {
		t.Error("a file that is not Go was accepted")
	}
}
