package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/bench/gateway"
)

// pickerOptions are the flags of picker.
type pickerOptions struct {
	target, model string
	secure        bool
	body, prompts int
	part, at      int
	rate          float64 // below 0: half of what is found first
	warm, measure time.Duration
}

// pickerResult is what picker prints.
type pickerResult struct {
	Target      string  `json:"target"`
	Body        int     `json:"body_bytes"`
	Concurrency int     `json:"concurrency,omitempty"`
	Rate        float64 `json:"asked_per_second,omitempty"` // 0: one after the other in each of Concurrency
	PerSecond   float64 `json:"requests_per_second"`
	Refused     int     `json:"refused"`
	Failed      int     `json:"failed"`
	Late        int     `json:"not_sent,omitempty"` // as too many were under way
	Answered    int     `json:"answered"`           // what the percentiles are of
	ChoiceUsP50 float64 `json:"choice_us_p50"`
	ChoiceUsP99 float64 `json:"choice_us_p99"`
	ChoiceUsMax float64 `json:"choice_us_max"`
	AnswerUsP50 float64 `json:"answer_us_p50"`
	AnswerUsP99 float64 `json:"answer_us_p99"`
	AnswerUsMax float64 `json:"answer_us_max"`
	// By a fifth of the time each: a stall is in one of them, what is slow by itself in all.
	ChoiceUsP99Fifths []float64 `json:"choice_us_p99_fifths,omitempty"`
	// The most by which a request was sent later than the clock says: the client, or the machine, stood still.
	SentLateUsMax float64 `json:"sent_late_us_max,omitempty"`
	Error         string  `json:"error,omitempty"`
}

// pickerMemory is what the client may take before it collects garbage.
const pickerMemory = 1 << 30

func runPicker(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parsePicker(args, stderr)
	if err != nil {
		return err
	}
	var speak *tls.Config
	if o.secure {
		speak = gateway.AnyCertificate()
	}
	c, err := gateway.Dial(o.target, speak)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing is under way
	// A collection in the midst would be measured as the picker's: there is none below so much memory.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(pickerMemory))
	p := &pickerLoad{pickerOptions: o, client: c}
	p.makePrompts()
	p.most(ctx, o.warm)
	most := p.most(ctx, o.measure)
	if err := json.NewEncoder(stdout).Encode(most); err != nil {
		return err
	}
	rate := o.rate
	if rate < 0 {
		rate = most.PerSecond / 2
	}
	if rate == 0 {
		return nil
	}
	return json.NewEncoder(stdout).Encode(p.paced(ctx, rate, o.measure))
}

func parsePicker(args []string, stderr io.Writer) (pickerOptions, error) {
	var o pickerOptions
	f := newFlags("picker", stderr)
	f.StringVar(&o.target, "target", "127.0.0.1:9002", "the picker's address; any that speaks ext_proc")
	f.BoolVar(&o.secure, "tls", false, "speak TLS, and take any certificate")
	f.StringVar(&o.model, "model", "m", "model that requests name")
	f.IntVar(&o.body, "body", 20_000, "bytes of a request")
	f.IntVar(&o.prompts, "prompts", 64, "prompts that take turns; they share their first quarter")
	f.IntVar(&o.part, "part", 64<<10, "bytes of each message of a body")
	f.IntVar(&o.at, "concurrency", 16, "requests at once while as many as can be are sent")
	f.Float64Var(&o.rate, "rate", -1, "requests a second of the second part; below 0 is half of what the first one found, 0 is none")
	f.DurationVar(&o.warm, "warm", time.Second, "how long to ask before measuring")
	f.DurationVar(&o.measure, "measure", 5*time.Second, "how long to measure each part")
	return o, parseFlags(f, args, func() error {
		if o.body < 200 || o.prompts < 1 || o.part < 1 || o.at < 1 {
			return errors.New("--body is at least 200, --prompts, --part and --concurrency 1")
		}
		return nil
	})
}

// pickerLoad is the requests of a measurement.
type pickerLoad struct {
	pickerOptions
	client *gateway.Client
	bodies [][]byte
}

func (p *pickerLoad) makePrompts() {
	const words = "the quick brown fox jumps over the lazy dog while "
	for i := range p.prompts {
		head := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":16,"prompt":"`, p.model)
		room := p.body - len(head) - 2
		text := bytes.Repeat([]byte(words), room/len(words)+1)[:room]
		for at := room / 4; at+8 < room; at += 4096 {
			copy(text[at:], strconv.Itoa(10_000_000+i))
		}
		p.bodies = append(p.bodies, append(append([]byte(head), text...), `"}`...))
	}
}

// pickerTally is what came of some requests.
type pickerTally struct {
	choice, answer        *latencies
	done, refused, broken int
	last                  error
}

func (p *pickerLoad) ask(ctx context.Context, i int) (*gateway.Result, error) {
	return p.client.Do(ctx, &gateway.Request{Path: "/v1/completions", Body: p.bodies[i%len(p.bodies)], Part: p.part, Lenient: true, Answer: pickerAnswer(), Sized: true})
}

func (t *pickerTally) note(got *gateway.Result, err error) {
	switch {
	case err != nil:
		t.broken++
		t.last = err
	case got.Status != 0:
		t.refused++
		t.last = fmt.Errorf("%d %.200s", got.Status, got.Text)
	default:
		t.done++
		t.choice.add(int64(got.Choice))
		t.answer.add(int64(got.Answering))
	}
}

func pickerAnswer() [][]byte {
	return [][]byte{
		[]byte("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"),
		[]byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":1,\"total_tokens\":21}}\n\ndata: [DONE]\n\n"),
	}
}

// most sends as many as can be, by so many one after the other.
func (p *pickerLoad) most(ctx context.Context, within time.Duration) *pickerResult {
	tallies := make([]pickerTally, p.at)
	begun := time.Now()
	var all sync.WaitGroup
	for w := range tallies {
		t := &tallies[w]
		t.choice, t.answer = new(latencies), new(latencies)
		all.Go(func() {
			for i := w; time.Since(begun) < within; i += p.at {
				t.note(p.ask(ctx, i))
			}
		})
	}
	all.Wait()
	r := p.sum(tallies, time.Since(begun))
	r.Concurrency = p.at
	return r
}

// maxUnderWay bounds the requests of paced at once.
const maxUnderWay = 4096

// paced sends them by the clock, whatever becomes of those before.
func (p *pickerLoad) paced(ctx context.Context, rate float64, within time.Duration) *pickerResult {
	var mu sync.Mutex
	fifths := make([]pickerTally, 5)
	for i := range fifths {
		fifths[i].choice, fifths[i].answer = new(latencies), new(latencies)
	}
	room := make(chan struct{}, maxUnderWay)
	var all sync.WaitGroup
	begun := time.Now()
	var late int
	var behind time.Duration
	for i := 0; ; i++ {
		at := begun.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if at.Sub(begun) >= within {
			break
		}
		time.Sleep(time.Until(at))
		behind = max(behind, time.Since(at))
		select {
		case room <- struct{}{}:
		default:
			late++
			continue
		}
		all.Go(func() {
			defer func() { <-room }()
			got, err := p.ask(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			fifths[int64(at.Sub(begun))*int64(len(fifths))/int64(within)].note(got, err)
		})
	}
	all.Wait()
	r := p.sum(fifths, time.Since(begun))
	r.Rate, r.Late, r.SentLateUsMax = rate, late, float64(behind.Nanoseconds())/1e3
	for i := range fifths {
		r.ChoiceUsP99Fifths = append(r.ChoiceUsP99Fifths, fifths[i].choice.us(0.99))
	}
	return r
}

func (p *pickerLoad) sum(tallies []pickerTally, took time.Duration) *pickerResult {
	r := &pickerResult{Target: p.target, Body: p.body}
	choice, answer := newLatencies(), newLatencies()
	for i := range tallies {
		t := &tallies[i]
		choice.join(t.choice)
		answer.join(t.answer)
		r.Answered, r.Refused, r.Failed = r.Answered+t.done, r.Refused+t.refused, r.Failed+t.broken
		if t.last != nil {
			r.Error = t.last.Error()
		}
	}
	r.PerSecond = float64(r.Answered) / took.Seconds()
	r.ChoiceUsP50, r.ChoiceUsP99, r.ChoiceUsMax = choice.us(0.5), choice.us(0.99), choice.us(1)
	r.AnswerUsP50, r.AnswerUsP99, r.AnswerUsMax = answer.us(0.5), answer.us(0.99), answer.us(1)
	return r
}
