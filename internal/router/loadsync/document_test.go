package loadsync

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/doctest"
)

func TestNamesOfTheDocument(t *testing.T) {
	doc := doctest.Fields(t, doctest.Wire, "name-examples")
	l := start(t, t.TempDir(), 255, event.Space{Model: doc["model"], BlockSize: 16, Group: doc["group"]}).link
	for key, code := range map[string]string{"routers": l.all, "router 255": l.subject(255), "tenants": tenantsSubject("ns")} {
		if code = strings.Replace(code, ".ns.", ".prod.", 1); doc[key] != code { // the tests' namespace
			t.Errorf("%s: %s in the document, %s in the code", key, doc[key], code)
		}
	}
}
