package discover

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// Why a pod is refused is told once for each reason, however often the pod changes otherwise, in few words whatever
// its annotations are, and no longer than it is so.
func TestRefusalsAreToldOnce(t *testing.T) {
	f := newFleet()
	f.Replaced(nil)
	why := func() string { _, _, why := f.Count(); return why }
	store := func(note, text string) {
		f.Stored(pod(t, "a", "1", "10.0.0.1", noteModel, "m", noteBlockSize, "16", note, text))
	}
	told := func(want ...string) {
		t.Helper()
		list := f.Refusals()
		if !slices.EqualFunc(list, want, func(r Refusal, text string) bool {
			return r.Name == "k8s/n/x/a" && strings.Contains(r.Why, text) && len(r.Why) <= 500
		}) {
			t.Errorf("told %q, want of %q", list, want)
		}
		if last := why(); len(want) > 0 && !strings.Contains(last, want[len(want)-1]) || len(last) > 600 {
			t.Errorf("shown: %s", last)
		}
	}
	told()
	store(noteRole, "king")
	store(noteRole, "king")
	told("king")
	store(noteRole, "king")
	told()
	store(noteRole, "queen")
	told("queen")
	store(noteEvents, strings.Repeat("x", 200_000))
	told(noteEvents)
	store(noteRole, "prefill")
	if told(); why() != "" || f.stands("a") != "wanted" {
		t.Errorf("%s: %s", f.stands("a"), why())
	}
	store(noteRole, "king")
	told("king")
	store(noteRegisteredBy, byPublisher)
	if told(); why() != "" {
		t.Errorf("its kvpublisher registers it, and it is shown that %s", why())
	}
	store(noteRole, "king")
	told("king")
	f.Stored(pod(t, "a", "1", "10.0.0.1"))
	if told(); why() != "" || f.stands("a") != "asking" {
		t.Errorf("%s: %s", f.stands("a"), why())
	}
	list, _ := f.Due(time.Now(), 9)
	if len(list) != 1 {
		t.Fatalf("%v is asked", list)
	}
	store(noteRole, "king")
	told("king")
	f.Answered(list[0], Facts{}, errors.New("connection refused"), time.Now(), time.Now()) // it was asked before
	if told(); !strings.Contains(why(), "king") {
		t.Errorf("it is refused, and shown that %s", why())
	}
}

// What others annotate a pod with is not kept.
func TestOthersAnnotationsAreNotKept(t *testing.T) {
	p := pod(t, "a", "1", "10.0.0.1", noteModel, "m", "cni.example/status", strings.Repeat("x", 200_000), "kvatlas-not/ours", "y")
	if len(p.Notes) != 1 || p.Notes[noteModel] != "m" {
		t.Errorf("%d annotations are kept, of model %q", len(p.Notes), p.Notes[noteModel])
	}
}
