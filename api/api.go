package api

import _ "embed" // for the document

//go:embed openapi.yaml
var openAPI string

// OpenAPI returns the document that /openapi.yaml answers with.
func OpenAPI() string { return openAPI }
