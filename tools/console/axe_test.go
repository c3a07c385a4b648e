package console

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// axeVersion is the release of axe-core whose rules are asked.
const axeVersion = "4.14.1"

// axeCore returns the rules as a script, from the user's cache or npm's registry. Empty if
// they cannot be had; the test's log says so.
func axeCore(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Logf("skipped: axe-core's rules: %v", err)
		return ""
	}
	dir := filepath.Join(cache, "kvatlas", "axe-core-"+axeVersion)
	file := filepath.Join(dir, "node_modules", "axe-core", "axe.min.js")
	if _, err := os.Stat(file); err != nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Logf("skipped: axe-core's rules: %v", err)
			return ""
		}
		out, err := exec.Command("npm", "install", "--prefix", dir, "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "axe-core@"+axeVersion).CombinedOutput()
		if err != nil {
			t.Logf("skipped: axe-core's rules cannot be had: %v\n%s", err, out)
			return ""
		}
	}
	script, err := os.ReadFile(file)
	if err != nil {
		t.Logf("skipped: axe-core's rules: %v", err)
		return ""
	}
	return string(script)
}

// serious returns what the rules find in the page that is serious or critical.
func serious(b *tab, axe string) (found []string) {
	b.t.Helper()
	if !eval[bool](b, `Boolean(globalThis.axe)`) {
		eval[any](b, axe+"; void 0")
	}
	type finding struct {
		ID, Impact, Help string
		Nodes            []string
	}
	for _, v := range eval[[]finding](b, `axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.filter((v) => v.impact === 'serious' || v.impact === 'critical')
		.map((v) => ({ID: v.id, Impact: v.impact, Help: v.help, Nodes: v.nodes.slice(0, 3).map((n) => n.target.join(' ') + ': ' + (n.any[0]?.message ?? n.html.slice(0, 120)))})))`) {
		found = append(found, fmt.Sprintf("%s (%s): %s %q", v.ID, v.Impact, v.Help, v.Nodes))
	}
	return found
}
