package tokens

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// Directories that are not read to the end hold up no model but their own, which keeps what it had; a
// change is seen, and models that nobody serves any more are forgotten.
func TestSlowDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		write := func(model, template string) {
			for name, f := range tokentest.Files(template) {
				at := filepath.Join(root, model, name)
				if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, f.Data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		write("dir", tokentest.Template)
		dirs, err := NewDirs([]string{root}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		set, err := modelfiles.Read(tokentest.Files(tokentest.Template))
		if err != nil {
			t.Fatal(err)
		}
		var src *Source
		src = NewSource(Config{
			Dirs:  dirs,
			Fetch: func(context.Context, []modelfiles.File) (modelfiles.Set, error) { return set, nil },
			Ask: func(ctx context.Context, q Question) ([]uint32, error) {
				return src.Of(q.Space).use.Load().model.Tokens(ctx, q.Form, q.Body, nil)
			},
		})
		space := func(model string) event.Space { return event.Space{Model: model, BlockSize: 16} }
		fleet := map[event.Space][]Engine{space("dir"): {{Worker: 1, Is: 1}}, space("other"): {{Worker: 2, Is: 2, Files: src.Registered(set.Files())}}}
		hold := func() {
			for range cap(dirs.turns) {
				dirs.turns <- struct{}{}
			}
		}
		goOn := func() {
			for range cap(dirs.turns) {
				<-dirs.turns
			}
		}
		hold()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			src.Run(ctx, func() map[event.Space][]Engine { return fleet })
		}()
		defer func() { cancel(); <-done }()
		status := func(model string) Status {
			<-time.After(5 * time.Second)
			synctest.Wait()
			return src.Of(space(model)).Status()
		}
		if x := status("dir"); x.Files != "" || x.Error != "" {
			t.Errorf("nothing was read yet: %+v", x)
		}
		if x := status("other"); x.States["chats"] != "trusted" {
			t.Errorf("beside a slow directory: %+v", x)
		}
		goOn()
		was := status("dir")
		if was.States["chats"] != "trusted" || was.From != filepath.Join(root, "dir") {
			t.Errorf("%+v", was)
		}
		hold()
		write("dir", tokentest.Template+"!")
		if x := status("dir"); x.Files != was.Files || x.States["chats"] != "trusted" {
			t.Errorf("while the change is read: %+v", x)
		}
		goOn()
		if x := status("dir"); x.Files == was.Files || x.States["chats"] != "trusted" {
			t.Errorf("after the change: %+v", x)
		}
		if err := os.RemoveAll(filepath.Join(root, "dir")); err != nil {
			t.Fatal(err)
		}
		if x := status("dir"); x.Files != "" || x.Error != "" {
			t.Errorf("without the directory: %+v", x)
		}
	})
}

// Directories whose reading never ends, as many as may be read at once at their first look and as many at
// their loading, hold up other models for a while, not for good.
func TestHungDirectories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		fleet := map[event.Space][]Engine{}
		for n := range 2*loads + 1 {
			model := fmt.Sprint("m", n)
			if err := os.Mkdir(filepath.Join(root, model), 0o700); err != nil {
				t.Fatal(err)
			}
			fleet[event.Space{Model: model, BlockSize: 16}] = []Engine{{Worker: 1, Is: 1}}
		}
		last, begun := event.Space{Model: "m8", BlockSize: 16}, time.Now()
		delete(fleet, last)
		dirs, err := NewDirs([]string{root}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		set, err := modelfiles.Read(tokentest.Files(tokentest.Template))
		if err != nil {
			t.Fatal(err)
		}
		reads, never := map[string]int{}, make(chan struct{})
		var mu sync.Mutex
		dirs.files = func(dir fs.FS) (modelfiles.Set, error) {
			model := filepath.Base(fmt.Sprint(dir))
			mu.Lock()
			reads[model]++
			n := reads[model]
			mu.Unlock()
			switch {
			case model < "m4", model < "m8" && n > 1:
				<-never
			case model == "m8":
				return set, nil
			}
			own := maps.Clone(set)
			own["server.json"] = []byte(model)
			return own, nil
		}
		var src *Source
		src = NewSource(Config{Dirs: dirs, Ask: func(ctx context.Context, q Question) ([]uint32, error) {
			return src.Of(q.Space).use.Load().model.Tokens(ctx, q.Form, q.Body, nil)
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			src.Run(ctx, func() map[event.Space][]Engine {
				if time.Since(begun) > 3*fetchWithin/2 { // once the others hang
					fleet[last] = []Engine{{Worker: 1, Is: 1}}
				}
				return fleet
			})
		}()
		defer func() { close(never); cancel(); <-done }()
		<-time.After(3 * fetchWithin)
		synctest.Wait()
		if x := src.Of(last).Status(); x.States["chats"] != "trusted" {
			t.Errorf("beside hung directories: %+v, reads %v", x, reads)
		}
	})
}

// What is known of directories is of models that are served.
func TestKnownDirectories(t *testing.T) {
	d, err := NewDirs([]string{t.TempDir()}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := func(look func()) { look() }
	changes := 0
	for range 3 {
		for _, model := range []string{"a", "b", "../b"} {
			if _, found, err := d.find(model, at, func() { changes++ }); found || err != nil && changes > 3 {
				t.Errorf("%s: %t %v", model, found, err)
			}
		}
	}
	if changes != 3 {
		t.Errorf("%d changes", changes)
	}
	if d.keep(map[event.Space][]Engine{{Model: "b"}: nil}); len(d.known) != 1 {
		t.Errorf("%d are known", len(d.known))
	}
}
