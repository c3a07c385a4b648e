package obs

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// LogConfig holds the settings of the log.
type LogConfig struct {
	Format string // text or json
	Level  string // debug, info, warn or error

	// Var is the level in force, which may be changed while the program runs;
	// nil: it stays.
	Var *slog.LevelVar
}

// Declare adds the log's settings to the set.
func (c *LogConfig) Declare(set *conf.Set) {
	c.Var = new(slog.LevelVar)
	set.Group("Log")
	set.String(&c.Format, "log-format", "text", "Form of log lines on standard error.", conf.OneOf("text", "json"))
	set.String(&c.Level, "log-level", "info", "Least level that is logged.", conf.OneOf("debug", "info", "warn", "error"))
}

// NewLogger returns a logger that writes to w as c says.
func NewLogger(w io.Writer, c LogConfig) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: plain}
	if c.Var != nil {
		c.Var.Set(level)
		o.Level = c.Var
	}
	switch c.Format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("log format %q is not text or json", c.Format)
}

// plain is Plain of the errors that are logged.
func plain(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		if said := Plain(err); said != err { //nolint:errorlint // whether it is the same
			a.Value = slog.AnyValue(said)
		}
	}
	return a
}
