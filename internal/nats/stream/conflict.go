package stream

import "github.com/nats-io/nats.go/jetstream"

// IsConflict reports whether a key of a bucket was not written because it is not what the writer knows. A stream
// with several copies has a code of its own for a key that another is writing at the moment, which the client
// leaves as it is where Create finds a key that was deleted.
func IsConflict(err error) bool {
	return isCode(err, jetstream.JSErrCodeStreamWrongLastSequence) || isCode(err, jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
