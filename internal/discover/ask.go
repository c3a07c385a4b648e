package discover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// asker asks engines what they serve. It is safe for concurrent use.
type asker struct {
	http    *http.Client
	engines *secure.Engines
}

// maxAnswer bounds what is read of an engine's answer.
const maxAnswer = 8 << 20

// ask returns what the engine of a says of itself. The model is what /v1/models has
// first that is no adapter of another; the block size is in vLLM's metrics and in
// SGLang's server info, which was at /get_server_info first, and is to be at /server_info alone.
func (k *asker) ask(ctx context.Context, a Ask) (f Facts, err error) {
	var models struct {
		Data []struct {
			ID     string
			Parent *string
		}
	}
	err = k.get(ctx, a, "/v1/models", func(r io.Reader) error { return json.NewDecoder(r).Decode(&models) })
	if err != nil {
		return f, err
	}
	for _, m := range models.Data {
		if m.Parent == nil || *m.Parent == "" {
			f.Model = m.ID
			break
		}
	}
	said := k.get(ctx, a, "/metrics", func(r io.Reader) error {
		var err error
		f.BlockSize, err = vllmBlockSize(r)
		return err
	})
	if said == nil && f.BlockSize != 0 {
		return f, nil
	}
	var info struct {
		PageSize uint32 `json:"page_size"`
	}
	for _, path := range [...]string{"/server_info", "/get_server_info"} {
		if k.get(ctx, a, path, func(r io.Reader) error { return json.NewDecoder(r).Decode(&info) }) == nil &&
			blockhash.CheckBlockSize(int(min(info.PageSize, blockhash.MaxBlockSize+1))) == nil {
			f.BlockSize = info.PageSize
			break
		}
	}
	return f, nil // an engine that has none of them is one whose block size has to be given
}

// blockSize finds the block size among the labels of a metric.
var blockSize = regexp.MustCompile(`[{,]block_size="([0-9]{1,6})"`)

// vllmBlockSize reads it from vLLM's metrics; 0: they do not have it.
func vllmBlockSize(r io.Reader) (uint32, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "vllm:cache_config_info{") {
			continue
		}
		if found := blockSize.FindStringSubmatch(lines.Text()); found != nil {
			n, err := strconv.Atoi(found[1])
			if err == nil {
				err = blockhash.CheckBlockSize(n)
			}
			return uint32(n), err
		}
	}
	return 0, lines.Err()
}

// get asks the engine for path and lets read have the answer.
func (k *asker) get(ctx context.Context, a Ask, path string, read func(io.Reader) error) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return fmt.Errorf("asking an engine: %w", err)
	}
	id := secure.EngineID{Worker: event.WorkerID(a.Name), Name: a.Name, Host: r.URL.Hostname()}
	if !k.engines.Show(r.Header, &id) {
		return errors.New("asking an engine: there is no credential for it")
	}
	resp, err := k.http.Do(r)
	if err != nil {
		return fmt.Errorf("asking an engine: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("an engine answers %s at %s", resp.Status, path)
	}
	if err := read(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return fmt.Errorf("what an engine answers at %s: %w", path, err)
	}
	return nil
}

// Pool is what of an InferencePool matters.
type Pool struct {
	Selector string
	Ports    []uint16
}

// maxPorts bounds the ports of a pool; its API has 8.
const maxPorts = 64

// ParsePool reads an InferencePool (inference.networking.k8s.io/v1).
func ParsePool(text []byte) (p Pool, err error) {
	var o struct {
		Spec struct {
			Selector    struct{ MatchLabels map[string]string }
			TargetPorts []struct{ Number int }
		}
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return p, fmt.Errorf("an InferencePool: %w", err)
	}
	if len(o.Spec.Selector.MatchLabels) == 0 || len(o.Spec.TargetPorts) == 0 || len(o.Spec.TargetPorts) > maxPorts {
		return p, fmt.Errorf("an InferencePool without labels to select by, or with %d ports", len(o.Spec.TargetPorts))
	}
	for _, x := range o.Spec.TargetPorts {
		if x.Number < 1 || x.Number > 65535 {
			return p, fmt.Errorf("an InferencePool with port %d", x.Number)
		}
		p.Ports = append(p.Ports, uint16(x.Number))
	}
	var terms []string
	for k, v := range o.Spec.Selector.MatchLabels {
		terms = append(terms, k+"="+v)
	}
	p.Selector = strings.Join(slices.Sorted(slices.Values(terms)), ",")
	return p, nil
}
