package api

import (
	_ "embed" // for the documents
	"strings"
)

//go:embed openapi.yaml
var openAPI string

//go:embed router.yaml
var router string

//go:embed admin.yaml
var admin string

//go:embed console.yaml
var console string

// Console returns the document of what the console's pages ask for.
func Console() string { return console }

// OpenAPI returns the document that kvindexer's /openapi.yaml answers with if it
// has all routes.
func OpenAPI() string { return openAPI }

// Router returns the document that kvrouter's /openapi.yaml answers with if it
// has all routes.
func Router() string { return router }

// Admin returns the document that the /openapi.yaml of admin ports answers with.
func Admin() string { return admin }

// Without returns a document without the paths that are gone.
func Without(document string, gone func(path string) bool) string {
	var b strings.Builder
	inPaths, left := false, false
	for line := range strings.Lines(document) {
		switch {
		case line[0] != ' ': // a field of the document
			inPaths, left = line == "paths:\n", false
		case inPaths && strings.HasPrefix(line, "  /"):
			left = gone(strings.TrimSuffix(strings.TrimSpace(line), ":"))
		}
		if !left {
			b.WriteString(line)
		}
	}
	return b.String()
}
