package apitest

import (
	"sync"
	"testing"
)

// Once returns what reads the document at its first call, and ends the test if it
// cannot.
func Once(text func() string) func(testing.TB) *Document {
	read := sync.OnceValues(func() (*Document, error) { return Read(text()) })
	return func(t testing.TB) *Document {
		t.Helper()
		d, err := read()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// Compare fails the test if the exchange departs from the document.
func (d *Document) Compare(t testing.TB, x Exchange) {
	t.Helper()
	if err := d.Check(x); err != nil {
		t.Errorf("the answer is not as documented: %v\nrequest %.500s\nanswer %.500s", err, x.Request, x.Answer)
	}
}

// Sees keeps the comparison honest: the document has the exchange, and after each of
// the changes has it no more.
func (d *Document) Sees(t testing.TB, good Exchange, changes map[string]func(x *Exchange)) {
	t.Helper()
	d.Compare(t, good)
	for name, change := range changes {
		x := good
		if change(&x); d.Check(x) == nil {
			t.Errorf("%s: not seen", name)
		}
	}
}
