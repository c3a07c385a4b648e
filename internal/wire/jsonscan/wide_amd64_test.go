package jsonscan

import "testing"

// Machines without the vectors read the same.
func TestArraysWithoutVectors(t *testing.T) {
	if !vectors {
		t.Skip("this machine has none, so that the other tests show it")
	}
	vectors = false
	defer func() { vectors = true }()
	TestArraysAreReadAsTheyAreWritten(t)
	TestWrongElementsAreNamed(t)
	TestArraysAreBounded(t)
	for _, b := range placed() {
		oneByOne(t, b)
	}
}
