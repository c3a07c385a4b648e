package traces

import (
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
)

// complaints are what the SDK finds wrong with the environment: it goes on without such a
// value, and would write it to stderr as it is, headers with their credentials too. So
// what it names beside the error is not taken. It is a logr.LogSink and an
// otel.ErrorHandler; the mutex is held to add or read.
type complaints struct {
	mu   sync.Mutex
	list []error
}

// maxComplaints bounds what is kept: the SDK keeps the logger for as long as it runs.
const maxComplaints = 8

// Handle implements otel.ErrorHandler.
func (c *complaints) Handle(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) < maxComplaints {
		c.list = append(c.list, err)
	}
}

// Error implements logr.LogSink.
func (c *complaints) Error(err error, what string, _ ...any) {
	c.Handle(fmt.Errorf("%s: %w", what, err))
}

// Info implements logr.LogSink. Nothing that it says is of use here.
func (*complaints) Info(int, string, ...any) {}

// Enabled implements logr.LogSink.
func (*complaints) Enabled(int) bool { return false }

// Init implements logr.LogSink.
func (*complaints) Init(logr.RuntimeInfo) {}

// WithValues implements logr.LogSink.
func (c *complaints) WithValues(...any) logr.LogSink { return c }

// WithName implements logr.LogSink.
func (c *complaints) WithName(string) logr.LogSink { return c }

func (c *complaints) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.list...)
}
