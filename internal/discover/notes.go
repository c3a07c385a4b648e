package discover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/registry"
)

// written are the annotations with the value that the field of that name has in a list of workers, as JSON.
var written = [...]string{"hybrid", "cache-groups", "tiers", "total-blocks", "max-batched-tokens", "cpu", "lora-ids", "pools"}

// readWritten reads them into the worker.
func readWritten(p *Pod, w *registry.Worker) error {
	for _, name := range written {
		text := p.Notes[Annotation+name]
		if text == "" {
			continue
		}
		if err := readField(strings.ReplaceAll(name, "-", "_"), text, w); err != nil {
			return fmt.Errorf("annotation %s: %.200q: %w", Annotation+name, text, err)
		}
	}
	return nil
}

func readField(name, text string, w *registry.Worker) error {
	if !json.Valid([]byte(text)) { // nor more than one value
		return errors.New("no JSON")
	}
	d := json.NewDecoder(strings.NewReader(fmt.Sprintf("{%q: %s}", name, text)))
	d.DisallowUnknownFields()
	return d.Decode(w)
}

// meeting returns where other engines meet that of the pod, at the port of an annotation; "" without one.
func meeting(p *Pod, note string) (string, error) {
	n, err := port(p, note, 0)
	if n == 0 || err != nil {
		return "", err
	}
	return net.JoinHostPort(p.IP, strconv.Itoa(int(n))), nil
}
