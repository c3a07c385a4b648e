package jinja

import (
	"context"
	"time"
)

// Limits bound what one render may take. A zero field stands for its default.
type Limits struct {
	Steps  int // statements, iterations, calls, and what they are worth in work; 20,000,000
	Output int // bytes of the rendered text; 64 MiB
	Memory int // bytes of all values that the template makes, together; 512 MiB
	Depth  int // macros and recursive loops in one another; 200
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Steps, 20_000_000)
	def(&l.Output, 64<<20)
	def(&l.Memory, 512<<20)
	def(&l.Depth, 200)
	return l
}

var (
	errSteps  error = &LimitError{"more steps than it may take"}
	errMemory error = &LimitError{"more memory than it may take"}
	errOutput error = &LimitError{"more text than it may write"}
	errDepth  error = &LimitError{"more calls in one another than it may make"}
)

// valueBytes is what a Value takes, about.
const valueBytes = 48

// state is one render.
type state struct {
	ctx    context.Context
	out    []byte
	f      *frame
	vars   []Value // what the names from outside stand for, by number
	now    time.Time
	limits Limits
	steps  int
	memory int
	depth  int
	text   Value // of the block whose filters are applied
}

// frame holds the variables of one call of a function: of the template itself, a macro, a
// call block, a recursive loop, or a loop's condition. Functions inside see it as it is
// when they run, as Python's closures do.
type frame struct {
	slots []Value
	outer *frame
}

// step counts one step. The context is looked at now and then.
func (s *state) step() error {
	if s == nil {
		return nil
	}
	s.steps++
	if s.steps&0xFFF == 0 || s.steps > s.limits.Steps {
		return s.check()
	}
	return nil
}

func (s *state) check() error {
	if s.steps > s.limits.Steps {
		return errSteps
	}
	return s.ctx.Err()
}

// charge counts n steps.
func (s *state) charge(n int) error {
	if s == nil || n <= 0 {
		return nil
	}
	s.steps += n
	if n >= 0x1000 || s.steps > s.limits.Steps {
		return s.check()
	}
	return nil
}

// alloc counts n bytes of values.
func (s *state) alloc(n int) error {
	if s.memory += n; s.memory > s.limits.Memory {
		return errMemory
	}
	return s.charge(n / 256)
}

func (s *state) write(text string) error {
	s.out = append(s.out, text...)
	if len(s.out) > s.limits.Output {
		return errOutput
	}
	return nil
}

// writeValue writes str(v).
func (s *state) writeValue(v Value) (err error) {
	if v.k == str {
		return s.write(v.s)
	}
	if err := s.beforeText(v); err != nil {
		return err
	}
	if s.out, err = appendStr(s.out, v); err == nil && len(s.out) > s.limits.Output {
		err = errOutput
	}
	return err
}

// beforeText does what the text of v needs beforehand.
func (s *state) beforeText(v Value) error {
	if l, ok := v.o.(*loopObj); ok {
		_, err := l.len(s)
		return err
	}
	return s.chargeSize(v)
}

// capture gives what f writes as a string, and takes it from the output.
func (s *state) capture(f func() error) (Value, error) {
	from := len(s.out)
	err := f()
	return s.captured(from, err)
}

func (s *state) captured(from int, err error) (Value, error) {
	if err == nil {
		err = s.alloc(len(s.out) - from)
	}
	if err != nil {
		return Value{}, err
	}
	text := string(s.out[from:])
	s.out = s.out[:from]
	return Str(text), nil
}

// call runs f in a frame of its own.
func (s *state) call(slots int, outer *frame, f func() error) error {
	if s.depth++; s.depth > s.limits.Depth {
		return errDepth
	}
	if err := s.step(); err != nil {
		return err
	}
	caller := s.f
	s.f = &frame{make([]Value, slots), outer}
	err := f()
	s.f = caller
	s.depth--
	return err
}
