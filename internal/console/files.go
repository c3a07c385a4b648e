package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

//go:embed static
var static embed.FS

// file is one of the pages'.
type file struct {
	data []byte
	kind string
	tag  string
}

// typeOf returns the type of a file, which must not hang on the machine's own table.
func typeOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js", ".mjs":
		return "text/javascript; charset=utf-8"
	case ".json":
		return "application/json"
	case ".svg":
		return "image/svg+xml"
	case ".png":
		return "image/png"
	case ".ico":
		return "image/x-icon"
	case ".woff2":
		return "font/woff2"
	case ".txt":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

// readFiles returns the files by path; that of the folder itself is the index.
func readFiles() (map[string]*file, error) {
	files := map[string]*file{}
	root, err := fs.Sub(static, "static")
	if err != nil {
		return nil, fmt.Errorf("the console's files: %w", err)
	}
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(root, name)
		if err != nil {
			return err //nolint:wrapcheck // wrapped below
		}
		sum := sha256.Sum256(data)
		files[name] = &file{data: data, kind: typeOf(name), tag: `"` + hex.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the console's files: %w", err)
	}
	if files[""] = files["index.html"]; files[""] == nil {
		return nil, fmt.Errorf("the console's files: %w", fs.ErrNotExist)
	}
	return files, nil
}

// file answers with one of the files. Paths are taken as they came: none has an escape or
// leads anywhere else.
func (c *Console) file(a *edge.Ask) *edge.Reply {
	f := c.files[a.Path]
	if f == nil {
		return edge.ReplyProblem(edge.Refuse(http.StatusNotFound, "path", edge.UnknownRoute, "the console has no such file"))
	}
	if no := method(a.Method, false); no != nil {
		return no
	}
	if a.Known == f.tag {
		return &edge.Reply{Status: http.StatusNotModified, Type: f.kind, Tag: f.tag}
	}
	return &edge.Reply{Status: http.StatusOK, Type: f.kind, Tag: f.tag, Body: f.data}
}
