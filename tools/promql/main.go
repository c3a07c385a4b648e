// Command promql reads PromQL expressions, one JSON text a line, and prints what
// is wrong with each, by line; nothing of those that Prometheus takes.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	p := parser.NewParser(parser.Options{})
	in := json.NewDecoder(os.Stdin)
	for line := 1; ; line++ {
		var expr string
		err := in.Decode(&expr)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if _, err := p.ParseExpr(expr); err != nil {
			fmt.Printf("%d: %v\n", line, err)
		}
	}
}
