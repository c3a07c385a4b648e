//go:build !race

package coretest

const raceEnabled = false
