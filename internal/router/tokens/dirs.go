package tokens

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
)

// Dirs are directories with models' files, which are read again when they change. It is for
// one goroutine; what it begins looks at directories beside, and may take as long as a disk does.
type Dirs struct {
	of    map[string]string  // by model
	roots []string           // with a directory for each model
	known map[string]*finder // by model
	turns chan struct{}      // of those who read files, which they hold in memory whole
	files func(fs.FS) (modelfiles.Set, error)
	o     Options
}

// finder is what is known of where a model's files are.
type finder struct {
	last *seen      // nil: nothing yet
	next chan *seen // of the look that is on its way; nil: none is
}

// seen is what a look saw. It is not changed.
type seen struct {
	dir   string // "": there is none
	stamp string
	files Files
	err   error
}

// NewDirs takes directories as a setting has them: model=DIR, or DIR, which has one for each
// model by its name, org/model as DIR/org/model.
func NewDirs(list []string, o Options) (*Dirs, error) {
	d := &Dirs{of: map[string]string{}, known: map[string]*finder{}, turns: make(chan struct{}, loads), files: modelfiles.Read, o: o}
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

// find returns the model's files; false if there are none here. It begins a look at them, which
// is over when run's function returns, and does not wait for it: until the first is over
// the error is errLoading, then the answer is that of the last one. changed is called when
// there is another answer.
func (d *Dirs) find(model string, run func(look func()), changed func()) (Files, bool, error) {
	if d == nil || d.of[model] == "" && len(d.roots) == 0 {
		return Files{}, false, nil
	}
	f := d.known[model]
	if f == nil {
		f = &finder{}
		d.known[model] = f
	}
	select {
	case f.last = <-f.next:
		f.next = nil
	default:
	}
	if f.next == nil {
		last, next := f.last, make(chan *seen, 1)
		f.next = next
		run(func() {
			now := d.look(model, last)
			if next <- now; now != last {
				changed()
			}
		})
	}
	if f.last == nil {
		return Files{}, false, errLoading
	}
	return f.last.files, f.last.dir != "", f.last.err
}

// keep forgets all models but those that are served.
func (d *Dirs) keep(fleet map[event.Space][]Engine) {
	if d == nil {
		return
	}
	served := make(map[string]bool, len(fleet))
	for sp := range fleet {
		served[sp.Model] = true
	}
	maps.DeleteFunc(d.known, func(model string, _ *finder) bool { return !served[model] })
}

// look looks at a model's directory, and returns last where nothing has changed.
func (d *Dirs) look(model string, last *seen) *seen {
	now := &seen{dir: d.dir(model)}
	if now.dir != "" {
		now.stamp = modelfiles.Stamp(os.DirFS(now.dir))
	}
	if last != nil && last.dir == now.dir && last.stamp == now.stamp && last.err == nil {
		return last
	}
	if now.dir != "" {
		d.turns <- struct{}{}
		// A directory that hangs (a dead NFS) holds up its own model, and a turn for so long.
		over := sync.OnceFunc(func() { <-d.turns })
		hung := time.AfterFunc(fetchWithin, over)
		now.files, now.err = d.read(now.dir)
		hung.Stop()
		over()
	}
	if last != nil && now.err != nil && last.err != nil && now.err.Error() == last.err.Error() {
		return last
	}
	return now
}

// dir returns the directory of a model; "" if there is none.
func (d *Dirs) dir(model string) string {
	if dir, ok := d.of[model]; ok {
		return dir
	}
	dir := ""
	for _, root := range d.roots {
		// A model's name is whatever a worker registers: it leads nowhere else.
		if at := filepath.Join(root, filepath.FromSlash(model)); dir == "" && fs.ValidPath(model) && filepath.IsLocal(filepath.FromSlash(model)) && isDir(at) {
			dir = at
		}
	}
	return dir
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

var errChanging = errors.New("the files have changed while they were read")

// read says what the directory's files are, and how they are loaded.
func (d *Dirs) read(dir string) (Files, error) {
	set, err := d.files(os.DirFS(dir))
	if err != nil {
		return Files{}, fmt.Errorf("%s: %w", dir, err)
	}
	id := set.ID()
	return Files{ID: id, From: dir, Open: func(_ context.Context, engine string) (*Model, error) {
		set, err := d.files(os.DirFS(dir))
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
