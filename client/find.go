package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

const (
	typeJSON   = "application/json"
	typeBinary = "application/octet-stream"
)

// Find is a question: which workers hold which prefix of a prompt. Model is
// needed, and TokenIDs or Hashes.
type Find struct {
	Model    string
	TokenIDs []uint32 // the prompt
	Hashes   []uint64 // or the local hashes of its complete blocks
	// Group asks for the spaces of a routing group only; nil is every group.
	Group     *string
	BlockSize int // only spaces of this block size, in tokens; 0 is every size
	LoraName  string
	CacheSalt string
	MaxBlocks int  // look at so many leading blocks only; 0 is all
	EarlyExit bool // stop once a single rank is left; its depth is a lower bound
	TreeSizes bool // say how many blocks each listed rank holds
}

// Matches is the answer: one entry for each index space of the model.
type Matches struct{ Spaces []Space }

// Space is what is known in one index space.
type Space struct {
	Group     string
	BlockSize int // in tokens
	Blocks    int // complete blocks that were looked up
	// Estimated says that a worker's model has caches besides full attention, which are not
	// indexed: depths are the most that can be reused. The binary form says it of all spaces
	// of an answer, if it is so of one.
	Estimated bool
	// Pools is what each shared pool holds of the prompt that some worker names. It is in
	// External of these workers' ranks. The binary form has that alone.
	Pools []PoolDepth
	Ranks []Rank
}

// PoolDepth is how many leading blocks a pool holds, whatever of them can only be read together.
type PoolDepth struct {
	Name  string `json:"pool"`
	Depth int    `json:"external"`
}

// Rank is a rank that holds the first block. Depths are leading blocks, each
// counting the tiers before it: HostPinned is device and host together.
type Rank struct {
	Worker     uint64
	DPRank     uint32
	Device     int
	HostPinned int
	Disk       int
	External   int
	TreeSize   int // blocks that the rank holds, if that was asked for
}

// Longest returns the rank with the most leading blocks on the device, and on
// all tiers where those are equal. It reports false if nobody holds the first.
func (s *Space) Longest() (best Rank, ok bool) {
	for i, r := range s.Ranks {
		if i == 0 || r.Device > best.Device || r.Device == best.Device && r.External > best.External {
			best = r
		}
	}
	return best, len(s.Ranks) > 0
}

// FindMatches asks kvindexer which workers hold which prefix.
func (c *Client) FindMatches(ctx context.Context, f Find) (*Matches, error) {
	if (f.TokenIDs == nil) == (f.Hashes == nil) {
		return nil, errors.New("client: give TokenIDs or Hashes")
	}
	q := request{method: http.MethodPost, path: "/v1/find_matches"}
	if c.cfg.Binary {
		q.kind, q.query, q.body = typeBinary, f.arguments(), f.array()
	} else {
		body, err := json.Marshal(f.fields())
		if err != nil {
			return nil, fmt.Errorf("writing the request: %w", err)
		}
		q.kind, q.body = typeJSON, body
	}
	a, err := c.do(ctx, &q)
	if err != nil {
		return nil, err
	}
	m := new(Matches)
	if strings.HasPrefix(a.kind, typeBinary) {
		err = m.UnmarshalBinary(a.body)
	} else {
		err = m.parseJSON(a.body)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", c.base.Host, err)
	}
	return m, nil
}

// fields returns the question as JSON's fields.
func (f *Find) fields() map[string]any {
	m := map[string]any{"model": f.Model}
	if f.TokenIDs != nil {
		m["token_ids"] = f.TokenIDs
	} else {
		m["hashes"] = f.Hashes
	}
	if f.Group != nil {
		m["group"] = *f.Group
	}
	for name, v := range map[string]int{"block_size": f.BlockSize, "max_blocks": f.MaxBlocks} {
		if v != 0 {
			m[name] = v
		}
	}
	for name, v := range map[string]string{"lora_name": f.LoraName, "cache_salt": f.CacheSalt} {
		if v != "" {
			m[name] = v
		}
	}
	for name, v := range map[string]bool{"early_exit": f.EarlyExit, "tree_sizes": f.TreeSizes} {
		if v {
			m[name] = v
		}
	}
	return m
}

// arguments returns all but the array as arguments of the URL.
func (f *Find) arguments() url.Values {
	v := url.Values{}
	for name, field := range f.fields() {
		switch field := field.(type) {
		case string:
			v.Set(name, field)
		case int:
			v.Set(name, strconv.Itoa(field))
		case bool:
			v.Set(name, strconv.FormatBool(field))
		}
	}
	if f.TokenIDs != nil {
		v.Set("elements", "token_ids")
	}
	return v
}

func (f *Find) array() []byte {
	b := make([]byte, 0, 4*len(f.TokenIDs)+8*len(f.Hashes))
	for _, t := range f.TokenIDs {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	for _, h := range f.Hashes {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	return b
}

func (m *Matches) parseJSON(body []byte) error {
	var a struct {
		Spaces []struct {
			Group     string
			BlockSize int `json:"block_size"`
			Blocks    int
			Estimated bool
			Pools     []PoolDepth
			Workers   []struct {
				ID    uint64 `json:"worker_id,string"`
				Ranks []struct {
					DPRank     uint32 `json:"dp_rank"`
					Device     int
					HostPinned int `json:"host_pinned"`
					Disk       int
					External   int
					TreeSize   int `json:"tree_size"`
				}
			}
		}
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return err
	}
	for _, s := range a.Spaces {
		sp := Space{Group: s.Group, BlockSize: s.BlockSize, Blocks: s.Blocks, Estimated: s.Estimated, Pools: s.Pools}
		for _, w := range s.Workers {
			for _, r := range w.Ranks {
				sp.Ranks = append(sp.Ranks, Rank{w.ID, r.DPRank, r.Device, r.HostPinned, r.Disk, r.External, r.TreeSize})
			}
		}
		m.Spaces = append(m.Spaces, sp)
	}
	return nil
}

// UnmarshalBinary reads the binary form, which docs/http.md describes. Every declared
// number is compared with the bytes that remain.
func (m *Matches) UnmarshalBinary(b []byte) error {
	const header, rank = 16, 32
	if len(b) < header || string(b[:4]) != "KVA1" {
		return errors.New("not of the binary form KVA1")
	}
	m.Spaces = nil
	le := binary.LittleEndian
	const flagEstimated = 2
	estimated, spaces := le.Uint32(b[4:])&flagEstimated != 0, le.Uint32(b[8:])
	b = b[header:]
	for range spaces {
		if len(b) < header {
			return errors.New("the answer ends inside a space")
		}
		sp := Space{BlockSize: int(le.Uint32(b)), Blocks: int(le.Uint32(b[4:])), Estimated: estimated}
		ranks, name := uint64(le.Uint32(b[8:])), uint64(le.Uint32(b[12:]))
		b = b[header:]
		padded := (name + 7) &^ 7
		if padded+ranks*rank > uint64(len(b)) {
			return errors.New("the answer ends inside a space")
		}
		sp.Group, b = string(b[:name]), b[padded:]
		for range ranks {
			at := func(i int) int { return int(le.Uint32(b[i:])) }
			sp.Ranks = append(sp.Ranks, Rank{le.Uint64(b), le.Uint32(b[8:]), at(12), at(16), at(20), at(24), at(28)})
			b = b[rank:]
		}
		m.Spaces = append(m.Spaces, sp)
	}
	if len(b) > 0 {
		return fmt.Errorf("%d bytes beyond the answer", len(b))
	}
	return nil
}
