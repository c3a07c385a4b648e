package fleet

import "testing"

// A version counts from its release on, and what came before that not.
func TestSoftware(t *testing.T) {
	for version, want := range map[string]bool{
		"0.27.0": true, "v0.27.0": true, "0.27.1": true, "0.27.0.post1": true, "0.27.0+cu129": true, "0.28.0rc1": true, "1.0": true, "0.27.1.dev3+gabc": true,
		"0.26.9": false, "0.27.0rc1": false, "0.27.0.dev3+gabc": false, "0.27.0b2": false, "0.26": false, "": false, "dev": false, "99999999999.1": false,
	} {
		s, ok := parseSoftware("vllm", version)
		if got := ok && s.Since([3]int{0, 27, 0}); got != want {
			t.Errorf("%q: %+v, since: %t", version, s, got)
		}
	}
}
