package engine

// Reason says why a decoder left something out.
type Reason uint8

// The reasons, with what is counted under each.
const (
	OtherGroup   Reason = iota // blocks of a cache group that is not the main one
	Remote                     // blocks that are not local to the worker
	BlockSize                  // blocks of another size than the space's
	Lookahead                  // blocks whose hash covers tokens beyond them
	ExtraKeys                  // blocks whose hash covers keys of an unknown kind
	Medium                     // blocks on an unknown medium
	ParentLeft                 // blocks whose parent was left out
	UnnamedLora                // blocks of a LoRA adapter that is given by a number nobody has named
	Malformed                  // events whose fields contradict each other
	UnknownEvent               // events with an unknown tag
	UnknownField               // fields with an unknown name or position
	NumReasons   = 11
)

// String returns the reason as a metric's label.
func (r Reason) String() string {
	switch r {
	case OtherGroup:
		return "other_group"
	case Remote:
		return "remote"
	case BlockSize:
		return "block_size"
	case Lookahead:
		return "lookahead"
	case ExtraKeys:
		return "extra_keys"
	case Medium:
		return "medium"
	case ParentLeft:
		return "parent_left_out"
	case UnnamedLora:
		return "unnamed_lora"
	case Malformed:
		return "malformed_event"
	case UnknownEvent:
		return "unknown_event"
	case UnknownField:
		return "unknown_field"
	}
	return "unknown"
}

// Stats counts what a decoder left out, by reason.
type Stats [NumReasons]uint64
