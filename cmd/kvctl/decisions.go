package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/route/account"
)

// errNoDecision is wrapped by the error about a decision that is not kept.
var errNoDecision = errors.New("no such decision is kept")

// decisions lists what the router keeps, or with export all of it as JSON lines.
func (c *config) decisions(ctx context.Context, export bool) error {
	query := url.Values{}
	if c.model != "" {
		query.Set("model_name", c.model)
	}
	if export {
		query.Set("format", "jsonl")
		return c.ask(ctx, http.MethodGet, query, func(body io.Reader) error {
			_, err := io.Copy(c.out, body)
			return err
		}, "v1", "decisions")
	}
	var list struct {
		Decisions []*account.Decision `json:"decisions"`
	}
	if err := c.ask(ctx, http.MethodGet, query, readJSON(&list), "v1", "decisions"); err != nil {
		return err
	}
	if c.json {
		return c.print(map[string]any{"decisions": list.Decisions})
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tTIME\tMODEL\tPHASE\tWORKER\tPROMPT\tREACHABLE\tSELECTED\tACTUAL\tPREDICTED MS\tFIRST MS\tWHY\tKEPT")
	for _, d := range list.Decisions {
		kept := make([]string, len(d.Kept))
		for i, k := range d.Kept {
			kept[i] = string(k)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%.1f\t%s\t%s\t%s\n", d.ID, d.Time.Format(time.TimeOnly), d.Model, d.Phase, rankName(d.Worker, d.DPRank),
			d.Prompt, number(d.Reachable), number(d.Selected), number(d.Actual), d.Predicted, msOf(d.First),
			cmp.Or(strings.Trim(d.Short+", "+d.Miss, ", "), "-"), strings.Join(kept, ","))
	}
	return w.Flush()
}

// mostOfARequest is how many decisions about one request are explained: the last ones.
const mostOfARequest = 16

// why explains a decision by its id, or all about a request by that one's, the first of them first: of a pair, and of a
// request that went elsewhere, there are several.
func (c *config) why(ctx context.Context, id string) error {
	d := new(account.Decision)
	err := c.ask(ctx, http.MethodGet, nil, readJSON(d), "v1", "decisions", id)
	if err == nil {
		return c.explain(d)
	}
	if !errors.Is(err, errNoDecision) {
		return err
	}
	var all []*account.Decision
	query := url.Values{"request_id": {id}, "format": {"jsonl"}, "limit": {strconv.Itoa(mostOfARequest)}}
	if err := c.ask(ctx, http.MethodGet, query, readLines(&all), "v1", "decisions"); err != nil {
		return err
	}
	if len(all) == 0 {
		return fmt.Errorf("%q: %w; kvctl decisions lists those that are", id, errNoDecision)
	}
	for i, d := range slices.Backward(all) {
		if err := c.explain(d); err != nil {
			return err
		}
		if i > 0 && !c.json {
			fmt.Fprintln(c.out)
		}
	}
	return nil
}

// explain prints a decision as asked for.
func (c *config) explain(d *account.Decision) error {
	if c.json {
		return json.NewEncoder(c.out).Encode(d)
	}
	return explain(c.out, d)
}

// explain prints a decision for a person.
func explain(out io.Writer, d *account.Decision) error {
	b := bufio.NewWriter(out)
	fmt.Fprintf(b, "%s  %s  model %s, group %s, %s, mode %s", d.ID, d.Time.Format(time.RFC3339Nano), d.Model, d.Group, d.Phase, d.Mode)
	if d.RequestID != "" {
		fmt.Fprintf(b, ", request %s", d.RequestID)
	}
	if d.TraceID != "" {
		fmt.Fprintf(b, ", trace %s", d.TraceID)
	}
	fmt.Fprintf(b, "\nworker %s: %.1f ms predicted to the first token, %s ms taken; %.1f ms in all", rankName(d.Worker, d.DPRank), d.Predicted, msOf(d.First), d.Total)
	if d.Failed {
		fmt.Fprint(b, "; it did not serve the request")
	}
	fmt.Fprintf(b, "\ntokens: %d prompt, %s reachable", d.Prompt, number(d.Reachable))
	if d.BestAt != nil && d.BestRank != nil && d.Reachable != nil && *d.Reachable > 0 {
		fmt.Fprintf(b, " (worker %s)", rankName(*d.BestAt, *d.BestRank))
	}
	fmt.Fprintf(b, ", %s selected", number(d.Selected))
	if d.Short != "" {
		fmt.Fprintf(b, " (less: %s)", d.Short)
	}
	fmt.Fprintf(b, ", %s found", number(d.Actual))
	if d.Miss != "" {
		fmt.Fprintf(b, " (not as expected: %s)", d.Miss)
	}
	fmt.Fprint(b, "\n")
	switch {
	case d.Rows == 0:
		fmt.Fprintln(b, "no table of candidates was written: see --decisions-rows of kvrouter")
		return b.Flush()
	case len(d.Ranks) == 0:
		fmt.Fprintf(b, "its table of %d candidates was too large to be kept: see --decisions-memory of kvrouter\n", d.Rows)
		return b.Flush()
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tWORKER\tCACHED\tNEW\tTO PREFILL\tBLOCKS IN USE\tREQUESTS\tCOST\tWHY")
	for i := range d.Ranks {
		r := &d.Ranks[i]
		mark, cost, why := "", "-", r.Formula
		if r.Chosen {
			mark = "*"
		}
		if !math.IsNaN(float64(r.Cost)) {
			cost = strconv.FormatFloat(float64(r.Cost), 'f', 1, 64)
		}
		if r.Left != "" {
			why = "left out: " + r.Left
		}
		if r.Stale {
			why += " (stale)"
		}
		if r.Unknown {
			why += " (unknown: its share did not answer)"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.0f\t%d\t%s\t%s\n", mark, rankName(r.Worker, r.DPRank), r.CachedTokens, r.NewTokens, r.PrefillTokens, r.DecodeBlocks, r.Requests, cost, why)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return b.Flush()
}

func rankName(worker uint64, rank uint32) string {
	return strconv.FormatUint(worker, 10) + "/" + strconv.FormatUint(uint64(rank), 10)
}

// number shows what may not be known.
func number(n *int) string {
	if n == nil {
		return "?"
	}
	return strconv.Itoa(*n)
}

func msOf(f *float64) string {
	if f == nil {
		return "?"
	}
	return strconv.FormatFloat(*f, 'f', 1, 64)
}

// readLines reads the decisions of an export.
func readLines(all *[]*account.Decision) func(io.Reader) error {
	return func(body io.Reader) error {
		for lines := json.NewDecoder(body); ; {
			d := new(account.Decision)
			switch err := lines.Decode(d); {
			case errors.Is(err, io.EOF): // and not in the middle of one
				return nil
			case err != nil:
				return fmt.Errorf("reading the router's answer: %w", err)
			}
			*all = append(*all, d)
		}
	}
}

func readJSON(v any) func(io.Reader) error {
	return func(body io.Reader) error {
		if err := json.NewDecoder(body).Decode(v); err != nil {
			return fmt.Errorf("reading the router's answer: %w", err)
		}
		return nil
	}
}

// ask asks the router of --router and has read the answer read.
func (c *config) ask(ctx context.Context, method string, query url.Values, read func(io.Reader) error, path ...string) error {
	u, err := url.Parse(c.router)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("--router %q is no URL such as http://127.0.0.1:8000: %w", conf.HideCredentials(c.router), errUse)
	}
	asks, err := c.client()
	if err != nil {
		return err
	}
	defer asks.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	for i := range path {
		path[i] = url.PathEscape(path[i])
	}
	u = u.JoinPath(path...)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	if c.tokenFile != "" {
		token, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return fmt.Errorf("--token-file: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	resp, err := asks.Do(req)
	if err != nil {
		return fmt.Errorf("asking the router: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode == http.StatusOK {
		return read(resp.Body)
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason)) // what there is of it
	if resp.StatusCode == http.StatusNotFound && strings.Contains(string(text), "unknown_decision") {
		return errNoDecision
	}
	if resp.StatusCode == http.StatusNotFound && strings.Contains(string(text), "model_not_found") {
		return errNoModel
	}
	return fmt.Errorf("%s answers %s: %s", conf.HideCredentials(c.router), resp.Status, strings.TrimSpace(string(text)))
}
