package stream

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/event"
)

// MaxPartitions bounds the streams of a space.
const MaxPartitions = 256

// Partition returns which of the n streams of a space takes a worker's events: that
// which a server's subject mapping with {{partition(n,…)}} of the worker's token
// would choose, so that publishers that know of no partitions can be mapped.
func Partition(worker uint64, n int) int {
	if n <= 1 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(strconv.FormatUint(worker, 10))) // it never fails
	return int(h.Sum32() % uint32(n))
}

// Share is a part of the workers of every space: those whose events go to the
// Index-th of Of streams. The zero value is all of them.
type Share struct{ Index, Of int }

// ParseShare reads "2/4"; "" is everything.
func ParseShare(s string) (Share, error) {
	if s == "" {
		return Share{}, nil
	}
	index, of, _ := strings.Cut(s, "/")
	i, err := strconv.Atoi(index)
	n, err2 := strconv.Atoi(of)
	if err != nil || err2 != nil || n < 1 || n > MaxPartitions || i < 0 || i >= n {
		return Share{}, fmt.Errorf("share %q: give which of how many, from 0/%d to %d/%d", s, MaxPartitions, MaxPartitions-1, MaxPartitions)
	}
	return Share{i, n}, nil
}

func (s Share) String() string {
	if s.Of == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", s.Index, s.Of)
}

// Has reports whether the worker is one of the share's.
func (s Share) Has(worker uint64) bool { return s.Of == 0 || Partition(worker, s.Of) == s.Index }

// Reads returns whether a replica of the share reads the stream: all is every one. The
// error says that the space is not divided as the share is: then no part of it is known.
func (s Share) Reads(info *Info) (bool, error) {
	switch {
	case s.Of == 0:
		return true, nil
	case info.Partitions == s.Of:
		return info.Partition == s.Index, nil
	}
	return false, fmt.Errorf("the space has %d streams, and this is share %s: its publishers began with another --stream-partitions", info.Partitions, s)
}

// partSubject is where the events of a worker, "*" for all, are published that belong to
// one of n streams of a space. The part is a token of its own, as a server's mapping needs
// it, and follows the worker as what says that an event is live, or a request: a number is
// neither.
func partSubject(ns string, sp event.Space, worker string, part, n int) string {
	subject := prefix + "." + ns + "." + Token(sp) + "." + worker
	if n <= 1 {
		return subject
	}
	return subject + "." + strconv.Itoa(part)
}

// partName is the name of one of n streams. The first has the space's own: all agree
// by it on how many there are.
func partName(ns string, sp event.Space, part int) string {
	if part == 0 {
		return Name(ns, sp)
	}
	return Name(ns, sp) + "-p" + strconv.Itoa(part)
}

// Subject returns where a worker's events are published that belong to the stream.
func (i *Info) Subject(worker uint64) string {
	return partSubject(i.Namespace, i.Space, strconv.FormatUint(worker, 10), i.Partition, i.Partitions)
}

// captures returns what one of n streams of the space captures.
func captures(ns string, sp event.Space, part, n int) string {
	return partSubject(ns, sp, "*", part, n)
}
