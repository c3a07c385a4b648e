package discover

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/registry"
)

// Annotation is what the names of a pod's annotations begin with.
const Annotation = "kvatlas/"

// The annotations.
const (
	noteModel        = Annotation + "model"
	noteBlockSize    = Annotation + "block-size"
	noteGroup        = Annotation + "group"
	noteRole         = Annotation + "role"
	noteKVTransfer   = Annotation + "kv-transfer"
	noteEngineScheme = Annotation + "engine-scheme"
	noteCredential   = Annotation + "credential"
	noteRanks        = Annotation + "dp-ranks"      // behind the one port: 0-3
	noteEvents       = Annotation + "events-port"   // a port, or none
	noteReplay       = Annotation + "replay-port"   // a port, or none
	noteSnapshot     = Annotation + "snapshot-port" // likewise
	noteBootstrap    = Annotation + "bootstrap-port"
	notePeer         = Annotation + "peer-port" // of rank 0
	noteRegisteredBy = Annotation + "registered-by"
)

// byPublisher is the value of noteRegisteredBy for pods whose kvpublisher announces
// the worker.
const byPublisher = "publisher"

// Pod is what of a pod matters.
type Pod struct {
	Name, UID string
	IP        string // "" until it has one
	Ready     bool
	// Ended says that its engine is on the way out, or will not come.
	Ended bool
	Notes map[string]string // annotations of this program's names
}

// ParsePod reads a pod as the API server gives it. With an error it has its name, if that can be read.
func ParsePod(text []byte) (Pod, error) {
	var o struct {
		Metadata struct {
			Name, UID         string
			DeletionTimestamp *string
			Annotations       map[string]string
		}
		Status struct {
			Phase, PodIP string
			Conditions   []struct{ Type, Status string }
		}
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return Pod{Name: o.Metadata.Name}, fmt.Errorf("pod %s: %w", o.Metadata.Name, err)
	}
	if o.Metadata.Name == "" {
		return Pod{}, fmt.Errorf("a pod without a name")
	}
	// Others keep what they like there, up to 256 KiB a pod.
	maps.DeleteFunc(o.Metadata.Annotations, func(name, _ string) bool { return !strings.HasPrefix(name, Annotation) })
	p := Pod{
		Name: o.Metadata.Name, UID: o.Metadata.UID, IP: o.Status.PodIP, Notes: o.Metadata.Annotations,
		Ended: o.Metadata.DeletionTimestamp != nil || o.Status.Phase == "Failed" || o.Status.Phase == "Succeeded",
	}
	for _, c := range o.Status.Conditions {
		p.Ready = p.Ready || c.Type == "Ready" && c.Status == "True"
	}
	return p, nil
}

// Facts are what an engine serves. Zero is not known.
type Facts struct {
	Model     string
	BlockSize uint32
}

// Defaults are what holds for a pod whose annotations say nothing else.
type Defaults struct {
	Facts
	Group    string
	Ports    []uint16 // of the engines' HTTP endpoints: several are ranks with one each
	Events   uint16   // of rank 0; each rank adds its number. 0: no events
	Replay   uint16   // likewise; 0: none
	Snapshot uint16   // likewise
	HTTPS    bool
}

// facts returns what is known of the pod's engine without asking it.
func (d *Defaults) facts(p *Pod) (f Facts, err error) {
	f = d.Facts
	if model := p.Notes[noteModel]; model != "" {
		f.Model = model
	}
	if text := p.Notes[noteBlockSize]; text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err == nil {
			err = blockhash.CheckBlockSize(int(n))
		}
		if err != nil {
			return f, fmt.Errorf("annotation %s: %q is no number of tokens", noteBlockSize, text)
		}
		f.BlockSize = uint32(n)
	}
	return f, nil
}

// port reads an annotation that is a port, or none.
func port(p *Pod, note string, otherwise uint16) (uint16, error) {
	switch text := p.Notes[note]; text {
	case "":
		return otherwise, nil
	case "none":
		return 0, nil
	default:
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return 0, fmt.Errorf("annotation %s: %q is no port, nor none", note, text)
		}
		return uint16(n), nil
	}
}

// maxRanks bounds the ranks of a pod.
const maxRanks = 1024

// ranks returns the data-parallel ranks behind the port of a rank: that one, or, of a pod's only port, those of its
// annotation, among which the engine is told by a header.
func (d *Defaults) ranks(p *Pod, rank int) (list []uint32, err error) {
	text := p.Notes[noteRanks]
	if text == "" {
		return []uint32{uint32(rank)}, nil
	}
	if len(d.Ports) > 1 {
		return nil, fmt.Errorf("annotation %s: a pool with %d ports has a rank at each", noteRanks, len(d.Ports))
	}
	from, to, several := strings.Cut(text, "-")
	first, err := strconv.ParseUint(from, 10, 16)
	last := first
	if several && err == nil {
		last, err = strconv.ParseUint(to, 10, 16)
	}
	if err != nil || last < first || last-first >= maxRanks {
		return nil, fmt.Errorf("annotation %s: %q; give ranks as 0-3, %d at most", noteRanks, text, maxRanks)
	}
	for r := first; r <= last; r++ {
		list = append(list, uint32(r))
	}
	return list, nil
}

// url returns where the rank's engine answers.
func (d *Defaults) url(p *Pod, rank int) string {
	scheme := "http://"
	if d.HTTPS {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(p.IP, strconv.Itoa(int(d.Ports[rank])))
}

// worker returns what is registered of the pod's rank. It has an address.
func (d *Defaults) worker(name string, p *Pod, rank int, f Facts) (w registry.Worker, err error) {
	if _, err := netip.ParseAddr(p.IP); err != nil {
		return w, fmt.Errorf("its address %q is none", p.IP)
	}
	events, err := port(p, noteEvents, d.Events)
	if err != nil {
		return w, err
	}
	replay, err := port(p, noteReplay, d.Replay)
	if err != nil {
		return w, err
	}
	snapshot, err := port(p, noteSnapshot, d.Snapshot)
	if err != nil {
		return w, err
	}
	ranks, err := d.ranks(p, rank)
	if err != nil {
		return w, err
	}
	w = registry.Worker{
		Name: name, Model: f.Model, BlockSize: f.BlockSize, Group: d.Group, Ranks: ranks,
		Role: registry.Role(p.Notes[noteRole]), KVTransfer: registry.KVTransfer(p.Notes[noteKVTransfer]),
		EngineScheme: p.Notes[noteEngineScheme], Credential: p.Notes[noteCredential], Transport: registry.NoEvents,
		Endpoints: registry.Endpoints{HTTP: d.url(p, rank)},
	}
	if group, ok := p.Notes[noteGroup]; ok {
		w.Group = group
	}
	if w.Endpoints.Bootstrap, err = meeting(p, noteBootstrap); err != nil {
		return w, err
	}
	if w.Endpoints.Peer, err = meeting(p, notePeer); err != nil {
		return w, err
	}
	if err := readWritten(p, &w); err != nil {
		return w, err
	}
	at := func(first uint16) (map[uint32]string, error) {
		if first == 0 {
			return nil, nil
		}
		list := make(map[uint32]string, len(w.Ranks))
		for _, r := range w.Ranks {
			n := int(first) + int(r)
			if n > 65535 {
				return nil, fmt.Errorf("rank %d has no port from %d on", r, first)
			}
			list[r] = "tcp://" + net.JoinHostPort(p.IP, strconv.Itoa(n))
		}
		return list, nil
	}
	if w.Endpoints.Events, err = at(events); err != nil {
		return w, err
	}
	if events == 0 {
		return w, nil
	}
	w.Transport = registry.ZMQ
	if w.Endpoints.Replay, err = at(replay); err != nil {
		return w, err
	}
	w.Endpoints.Snapshot, err = at(snapshot)
	return w, err
}
