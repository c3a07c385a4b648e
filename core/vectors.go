package core

// vectorSet is what vectors a machine has.
type vectorSet uint8

const (
	noVectors vectorSet = iota // or none that the assembly is for
	narrow                     // of 32 bytes: Intel's since Haswell, AMD's since Zen
	wide                       // of 64: Intel's servers' since Skylake, AMD's since Zen 4
)
