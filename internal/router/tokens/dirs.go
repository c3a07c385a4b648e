package tokens

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
)

// Dirs are directories with models' files, which are read again when they change. It is for
// one goroutine.
type Dirs struct {
	of    map[string]string // by model
	roots []string          // with a directory for each model
	seen  map[string]seen   // by directory
	o     Options
}

type seen struct {
	stamp string
	files Files
	err   error
}

// NewDirs takes directories as a setting has them: model=DIR, or DIR, which has one for each
// model by its name, org/model as DIR/org/model.
func NewDirs(list []string, o Options) (*Dirs, error) {
	d := &Dirs{of: map[string]string{}, seen: map[string]seen{}, o: o}
	for _, item := range list {
		model, dir, named := strings.Cut(item, "=")
		if !named {
			dir = item
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("%q: there is no directory of that name", dir)
		}
		switch {
		case !named:
			d.roots = append(d.roots, dir)
		case model == "" || d.of[model] != "":
			return nil, fmt.Errorf("%q: give model=directory, once for each model", item)
		default:
			d.of[model] = dir
		}
	}
	return d, nil
}

// find returns the model's files; false if there are none here.
func (d *Dirs) find(model string) (Files, bool, error) {
	if d == nil {
		return Files{}, false, nil
	}
	dir, ok := d.of[model]
	for _, root := range d.roots {
		// A model's name is whatever a worker registers: it leads nowhere else.
		if at := filepath.Join(root, filepath.FromSlash(model)); !ok && fs.ValidPath(model) && filepath.IsLocal(filepath.FromSlash(model)) && isDir(at) {
			dir, ok = at, true
		}
	}
	if !ok {
		return Files{}, false, nil
	}
	stamp := modelfiles.Stamp(os.DirFS(dir))
	s := d.seen[dir]
	if s.stamp != stamp || s.files.ID == "" {
		s = seen{stamp: stamp}
		s.files, s.err = d.read(dir)
		d.seen[dir] = s
	}
	return s.files, true, s.err
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

var errChanging = errors.New("the files have changed while they were read")

// read says what the directory's files are, and how they are loaded.
func (d *Dirs) read(dir string) (Files, error) {
	set, err := modelfiles.Read(os.DirFS(dir))
	if err != nil {
		return Files{}, fmt.Errorf("%s: %w", dir, err)
	}
	id := set.ID()
	return Files{ID: id, From: dir, Open: func(_ context.Context, engine string) (*Model, error) {
		set, err := modelfiles.Read(os.DirFS(dir))
		if err != nil {
			return nil, err
		}
		if set.ID() != id {
			return nil, errChanging
		}
		o := d.o
		o.Engine = engine
		return Load(set, o)
	}}, nil
}
