package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

const resource = "mem:openapi.yaml"

// Document is an OpenAPI document.
type Document struct {
	root map[string]any

	mu       sync.Mutex
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema // by JSON pointer
}

// Read reads an OpenAPI document and compiles every schema in it.
func Read(yamlText string) (*Document, error) {
	var tree any
	if err := yaml.Unmarshal([]byte(yamlText), &tree); err != nil {
		return nil, fmt.Errorf("the OpenAPI document: %w", err)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("the OpenAPI document has more than JSON can say: %w", err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	d := &Document{compiler: jsonschema.NewCompiler(), schemas: make(map[string]*jsonschema.Schema)}
	d.root, _ = value.(map[string]any)
	if err := d.compiler.AddResource(resource, value); err != nil {
		return nil, err
	}
	for name := range d.object("components", "schemas") {
		if _, err := d.schema("#/components/schemas/" + name); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// object returns the object at the path; nil if there is none.
func (d *Document) object(path ...string) map[string]any {
	at := d.root
	for _, name := range path {
		at, _ = at[name].(map[string]any)
	}
	return at
}

// Routes returns all operations, as "METHOD /path", sorted.
func (d *Document) Routes() []string {
	var all []string
	for path, item := range d.object("paths") {
		for method := range item.(map[string]any) { //nolint:forcetypeassert // a test fails either way
			all = append(all, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(all)
	return all
}

// path returns the document's path that a request's path is of: that path
// itself, or the one with templates, such as /a/{id}, whose elements fit. It is
// "" if there is none.
func (d *Document) path(asked string) string {
	if d.object("paths", asked) != nil {
		return asked
	}
	elements := strings.Split(asked, "/")
	for path := range d.object("paths") {
		if slices.EqualFunc(strings.Split(path, "/"), elements, func(template, element string) bool {
			return template == element || strings.HasPrefix(template, "{") && element != ""
		}) {
			return path
		}
	}
	return ""
}

// schema compiles the schema at a pointer, once.
func (d *Document) schema(pointer string) (*jsonschema.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.schemas[pointer]; s != nil {
		return s, nil
	}
	s, err := d.compiler.Compile(resource + pointer)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", pointer, err)
	}
	d.schemas[pointer] = s
	return s, nil
}

// Exchange is one request with its answer.
type Exchange struct {
	Method, Path string // without the query
	RequestType  string // Content-Type; "" counts as JSON
	Request      []byte
	Status       int
	AnswerType   string
	Answer       []byte
}

// Check says how the exchange departs from the document; nil if it does not.
// The request's body is looked at only where the server took it: what it
// refuses may be anything.
func (d *Document) Check(x Exchange) error {
	path := d.path(x.Path)
	op := d.object("paths", path, strings.ToLower(x.Method))
	if op == nil {
		return fmt.Errorf("%s %s is not in the document", x.Method, x.Path)
	}
	at := "#/paths/" + escape(path) + "/" + strings.ToLower(x.Method)
	if body, takes := op["requestBody"].(map[string]any); takes && x.Status < 300 {
		if len(x.Request) == 0 && body["required"] != true {
			// it may be left out
		} else if err := d.body(at+"/requestBody", x.RequestType, x.Request); err != nil {
			return fmt.Errorf("%s %s: request: %w", x.Method, x.Path, err)
		}
	} else if !takes && len(x.Request) > 0 {
		return fmt.Errorf("%s %s: the document knows of no body", x.Method, x.Path)
	}
	code := fmt.Sprint(x.Status)
	responses, _ := op["responses"].(map[string]any)
	if _, ok := responses[code]; !ok {
		if code = "default"; x.Status < 400 {
			return fmt.Errorf("%s %s: status %d is not in the document, which has %v", x.Method, x.Path, x.Status, slices.Collect(maps.Keys(responses)))
		}
	}
	if err := d.body(at+"/responses/"+code, x.AnswerType, x.Answer); err != nil {
		return fmt.Errorf("%s %s: answer %d: %w", x.Method, x.Path, x.Status, err)
	}
	return nil
}

// body checks a body against the content that is described at the pointer.
func (d *Document) body(pointer, contentType string, body []byte) error {
	if ref := d.at(pointer)["$ref"]; ref != nil {
		pointer, _ = ref.(string)
	}
	content, _ := d.at(pointer)["content"].(map[string]any)
	kind, _, err := mime.ParseMediaType(contentType)
	if contentType == "" || content[kind] == nil && kind == "application/x-www-form-urlencoded" { // of curl -d
		kind, err = "application/json", nil
	}
	if err != nil || content[kind] == nil {
		return fmt.Errorf("type %q is not in the document", contentType)
	}
	const lines = "application/x-ndjson"
	if kind != "application/json" && kind != lines {
		return nil
	}
	s, err := d.schema(pointer + "/content/" + escape(kind) + "/schema")
	if err != nil {
		return err
	}
	parts := [][]byte{body}
	if kind == lines {
		parts = bytes.Split(bytes.TrimSuffix(body, []byte{'\n'}), []byte{'\n'})
	}
	for _, part := range parts {
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(part))
		if err != nil {
			return err
		}
		if err := s.Validate(value); err != nil {
			return err
		}
	}
	return nil
}

// at returns the object at a pointer.
func (d *Document) at(pointer string) map[string]any {
	path := strings.Split(strings.TrimPrefix(pointer, "#/"), "/")
	for i := range path {
		path[i] = strings.ReplaceAll(strings.ReplaceAll(path[i], "~1", "/"), "~0", "~")
	}
	return d.object(path...)
}

func escape(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}
