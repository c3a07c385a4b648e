package api

import _ "embed" // for the documents

//go:embed openapi.yaml
var openAPI string

//go:embed router.yaml
var router string

//go:embed admin.yaml
var admin string

// OpenAPI returns the document that kvindexer's /openapi.yaml answers with.
func OpenAPI() string { return openAPI }

// Router returns the document that kvrouter's /openapi.yaml answers with.
func Router() string { return router }

// Admin returns the document that the /openapi.yaml of admin ports answers with.
func Admin() string { return admin }
