package event

import (
	"strconv"

	"github.com/zeebo/xxh3"
)

// String returns the kind's name in metrics and logs.
func (k Kind) String() string {
	return [...]string{"unknown", "stored", "removed", "cleared", "unknown"}[min(k, Cleared+1)]
}

// String returns the tier's name as kvatlas writes it.
func (t Tier) String() string {
	return [...]string{"device", "host_pinned", "disk", "external", "unknown"}[min(t, NumTiers)]
}

// longestTierName is the length of the longest name that ParseTier knows.
const longestTierName = 11

// ParseTier returns the tier that a medium's or storage tier's name stands
// for, in upper or lower case. The names are those of vLLM, SGLang,
// TensorRT-LLM, Mooncake and Dynamo.
func ParseTier(name []byte) (Tier, bool) {
	if len(name) > longestTierName {
		return 0, false
	}
	var buf [longestTierName]byte
	for i, c := range name {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		buf[i] = c
	}
	switch string(buf[:len(name)]) {
	case "GPU", "DEVICE":
		return Device, true
	case "CPU", "CPU_PINNED", "CPU_TIER1", "HOST_PINNED":
		return HostPinned, true
	case "CPU_TIER2", "DISK", "NVME", "STORAGE":
		return Disk, true
	case "EXTERNAL", "NETWORK", "REMOTE", "SHARED":
		return External, true
	}
	return 0, false
}

// WorkerID returns the id of the worker with the name: the number itself if
// the name is a decimal u64, else the XXH3-64 of its bytes.
func WorkerID(name string) uint64 {
	if id, err := strconv.ParseUint(name, 10, 64); err == nil {
		return id
	}
	return xxh3.HashString(name)
}
