package enginetest

// Release is an engine's release, and what its events can say.
type Release struct {
	Name   string // as a package index names it
	Signed bool   // hashes are signed; else they may be 32 bytes, too
	Host   string // medium of host memory; "": not published
	Lora   bool   // stores name LoRA adapters and salts
	Groups bool   // stores name cache groups
	// Session says that stores name sessions, which nobody needs.
	Session bool
}

// Releases returns the releases that are tested: both array and map layouts,
// both forms of replay.
func Releases() []Release {
	return []Release{
		{Name: "vllm==0.10.0"},
		{Name: "vllm==0.19.0", Host: "CPU", Lora: true},
		{Name: "vllm==0.23.0", Host: "CPU", Lora: true, Groups: true},
		{Name: "vllm==0.33.0", Host: "CPU", Lora: true, Groups: true, Session: true},
		{Name: "sglang==0.5.6", Signed: true},
		{Name: "sglang==0.5.23", Signed: true, Host: "CPU_PINNED", Lora: true},
	}
}
