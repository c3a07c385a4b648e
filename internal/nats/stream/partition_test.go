package stream

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/kvatlas/kvatlas/event"
)

// A server's subject mapping sends a worker's events to the stream that Partition
// says, so that publishers which know of no partitions can be mapped.
func TestPartitionsAreThoseOfAServersMapping(t *testing.T) {
	for _, n := range []string{"2", "4", "7", "256"} {
		tr, err := server.NewSubjectTransform(captures("prod", testSpace, 0, 1), partSubject("prod", testSpace, "{{wildcard(1)}}", 0, 1)+".{{partition("+n+",1)}}")
		if err != nil {
			t.Fatal(err)
		}
		share, err := ParseShare("0/" + n)
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[int]int)
		for range 2000 {
			worker := rand.Uint64() >> rand.IntN(64)
			info := Info{Namespace: "prod", Space: testSpace, Partition: Partition(worker, share.Of), Partitions: share.Of}
			found[info.Partition]++
			if mapped := tr.TransformSubject(Subject("prod", testSpace, worker)); mapped != info.Subject(worker) {
				t.Fatalf("worker %d: the server maps to %s, events go to %s", worker, mapped, info.Subject(worker))
			}
		}
		for part, workers := range found {
			if share.Of < 16 && (workers < 1000/share.Of || workers > 4000/share.Of) {
				t.Errorf("%d of 2000 workers in part %d of %d", workers, part, share.Of)
			}
		}
	}
}

// A stream that took requests would answer them in the publisher's place, and one that
// took live events would bring them twice.
func TestStreamsTakeEventsAlone(t *testing.T) {
	const n = 4
	for part := range n {
		captured := captures("prod", testSpace, part, n)
		for worker := range uint64(2 * n) {
			info := Info{Namespace: "prod", Space: testSpace, Partition: part, Partitions: n}
			if subject := info.Subject(worker); !server.SubjectsCollide(captured, subject) {
				t.Errorf("%s is not of %s", subject, captured)
			} else if got, err := Worker(subject); got != worker || err != nil {
				t.Errorf("%s is of worker %d, %v", subject, got, err)
			}
			for _, subject := range []string{RecoverSubject("prod", testSpace, worker), LiveSubject("prod", testSpace, worker)} {
				if server.SubjectsCollide(captured, subject) {
					t.Errorf("%s takes %s", captured, subject)
				}
			}
		}
	}
}

// Whoever is first says how many streams a space has; all others follow.
func TestPublishersAgreeOnPartitions(t *testing.T) {
	js := startServer(t)
	ctx := testContext(t)
	first := uint64(0)
	for Partition(first, 4) != 3 {
		first++
	}
	info, err := EnsureFor(ctx, js, "prod", testSpace, first, Config{Partitions: 4, MaxBytes: 1 << 20})
	if err != nil || info.Partition != 3 || info.Partitions != 4 || info.Name != Name("prod", testSpace)+"-p3" {
		t.Fatalf("%+v, %v", info, err)
	}
	streams := make(map[string]bool)
	for worker := range uint64(64) {
		info, err := EnsureFor(ctx, js, "prod", testSpace, worker, Config{Partitions: int(worker % 3), MaxBytes: 1 << 20})
		if err != nil || info.Partitions != 4 || info.Partition != Partition(worker, 4) {
			t.Fatalf("worker %d: %+v, %v", worker, info, err)
		}
		streams[info.Name] = true
		ack, err := js.Publish(ctx, info.Subject(worker), nil)
		if err != nil || ack.Stream != info.Name {
			t.Fatalf("worker %d: %+v, %v", worker, ack, err)
		}
		if got, err := Worker(info.Subject(worker)); got != worker || err != nil {
			t.Errorf("worker %d is %d in its subject: %v", worker, got, err)
		}
		if got, err := GetFor(ctx, js, "prod", testSpace, worker); err != nil || got.Name != info.Name {
			t.Errorf("worker %d: %+v, %v", worker, got, err)
		}
	}
	infos, err := List(ctx, js, "prod")
	if err != nil || len(infos) != 4 || len(streams) != 4 {
		t.Fatalf("%d streams, %d used: %v", len(infos), len(streams), err)
	}
	for i := range infos {
		readers := 0
		for index := range 4 {
			ours, err := Share{index, 4}.Reads(&infos[i])
			if err != nil {
				t.Error(err)
			}
			if ours {
				readers++
			}
		}
		if readers != 1 {
			t.Errorf("%d shares read %s", readers, infos[i].Name)
		}
		if ours, err := (Share{}).Reads(&infos[i]); !ours || err != nil {
			t.Errorf("who reads all does not read %s: %v", infos[i].Name, err)
		}
		for _, s := range []Share{{0, 2}, {0, 1}} {
			if ours, err := s.Reads(&infos[i]); ours || err == nil {
				t.Errorf("share %q reads %s: %v", s, infos[i].Name, err)
			}
		}
	}
	// A stream of another division of the space is not taken for one of this.
	if err := js.DeleteStream(ctx, Name("prod", testSpace)); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(ctx, js, "prod", testSpace, Config{Partitions: 8, MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	for Partition(first, 8) != 3 {
		first++
	}
	if _, err := EnsureFor(ctx, js, "prod", testSpace, first, Config{MaxBytes: 1 << 20}); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a stream of four serves one of eight: %v", err)
	}
}

func TestSharesHaveEachWorkerOnce(t *testing.T) {
	for _, bad := range []string{"1", "4/4", "-1/4", "0/0", "0/257", "a/4", "1/4/2"} {
		if s, err := ParseShare(bad); err == nil {
			t.Errorf("%q is %v", bad, s)
		}
	}
	for range 100 {
		worker, of := rand.Uint64(), 1+rand.IntN(MaxPartitions)
		has := 0
		for i := range of {
			if (Share{i, of}).Has(worker) {
				has++
			}
		}
		if has != 1 || !(Share{}).Has(worker) {
			t.Errorf("worker %d is in %d of %d shares", worker, has, of)
		}
	}
	if (event.Space{}) == testSpace {
		t.Error("the space of these tests is none")
	}
}
