//go:build !amd64

package core

import "testing"

// eachVectors runs a test with all vectors that there is assembly for.
func eachVectors(t *testing.T, _ func(t *testing.T)) { t.Skip("there is none for this processor") }
