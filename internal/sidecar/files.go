package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
)

// filesEvery is how often it is looked at whether the tokenizer's files have changed, and
// renewEvery how often, at least, whether they are still where routers fetch them. A server
// that was away may have come back with nothing: within lookAgain they are looked for, by
// all who put them, and not at once.
const (
	filesEvery = 2 * time.Second
	renewEvery = 12 * time.Hour
	lookAgain  = 5 * time.Second
)

// tokenizerFiles are the files by which the engine's prompts become tokens, as they were put
// where routers fetch them.
type tokenizerFiles struct {
	put atomic.Pointer[[]modelfiles.File]
}

// named returns what the registration names.
func (f *tokenizerFiles) named() []modelfiles.File {
	if list := f.put.Load(); list != nil {
		return *list
	}
	return nil
}

// keepFiles puts the files where routers fetch them, when they change, and before they would
// go there, until ctx ends. reconnects says how often the connection was made anew.
func (s *Sidecar) keepFiles(ctx context.Context, reconnects func() uint64) {
	dir := os.DirFS(s.cfg.Tokenizer)
	stamp, renew, said := "", time.Time{}, ""
	connections := reconnects()
	for {
		if now := reconnects(); now != connections {
			connections, renew = now, time.Now().Add(rand.N(lookAgain))
		}
		if now := modelfiles.Stamp(dir); now != stamp || time.Now().After(renew) {
			if err := s.putFiles(ctx, dir); err == nil {
				// Not all at once: the first to come renews them for all.
				stamp, renew, said = now, time.Now().Add(renewEvery+rand.N(renewEvery)), ""
			} else if ctx.Err() == nil && err.Error() != said { // a reason is told once, not at each try
				said = err.Error()
				s.log.Warn("the tokenizer's files are not where routers fetch them, trying again", "directory", s.cfg.Tokenizer, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(filesEvery):
		}
	}
}

func (s *Sidecar) putFiles(ctx context.Context, dir fs.FS) error {
	set, err := s.cfg.files(dir)
	if err != nil {
		return err
	}
	b, err := modelfiles.OpenBucket(ctx, s.broker.Conn(), s.cfg.Namespace, s.cfg.Broker.Replicas, true)
	if err != nil {
		return err
	}
	if err := b.Put(ctx, set); err != nil {
		return err
	}
	list := set.Files()
	if modelfiles.ID(list) != modelfiles.ID(s.files.named()) {
		s.files.put.Store(&list)
	}
	return nil
}

// files reads the files of the directory, with what the settings say of the server among them.
func (c *Config) files(dir fs.FS) (modelfiles.Set, error) {
	set, err := modelfiles.Read(dir)
	if err != nil || c.ChatKwargs == "" {
		return set, err
	}
	server := map[string]json.RawMessage{}
	if data, ok := set[modelfiles.Server]; ok {
		if err := json.Unmarshal(data, &server); err != nil {
			return nil, fmt.Errorf("%s: %w", modelfiles.Server, err)
		}
		if server == nil {
			return nil, fmt.Errorf("%s: null is no object", modelfiles.Server)
		}
	}
	server["default_chat_template_kwargs"] = json.RawMessage(c.ChatKwargs)
	set[modelfiles.Server], err = json.Marshal(server)
	return set, err
}

// checkFiles reports what is wrong with the settings of the tokenizer.
func (c *Config) checkFiles() error {
	switch {
	case c.Tokenizer == "" && c.ChatKwargs != "":
		return errors.New("--default-chat-template-kwargs: give --tokenizer, too")
	case c.Tokenizer == "":
		return nil
	case c.ChatKwargs != "" && (!json.Valid([]byte(c.ChatKwargs)) || c.ChatKwargs[0] != '{'):
		return errors.New("--default-chat-template-kwargs: give a JSON object")
	}
	if info, err := os.Stat(c.Tokenizer); err != nil || !info.IsDir() {
		return fmt.Errorf("--tokenizer: %q is no directory", c.Tokenizer)
	}
	return nil
}
