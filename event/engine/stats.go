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
	return [...]string{
		OtherGroup: "other_group", Remote: "remote", BlockSize: "block_size", Lookahead: "lookahead", ExtraKeys: "extra_keys",
		Medium: "medium", ParentLeft: "parent_left_out", UnnamedLora: "unnamed_lora", Malformed: "malformed_event", UnknownEvent: "unknown_event",
		UnknownField: "unknown_field", NumReasons: "unknown",
	}[min(r, NumReasons)]
}

// Stats counts what a decoder left out, by reason.
type Stats [NumReasons]uint64
