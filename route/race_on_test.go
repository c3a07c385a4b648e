//go:build race

package route

// raceEnabled: the race detector makes sync.Pool drop some of its content.
const raceEnabled = true
