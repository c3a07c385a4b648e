package tokens

import (
	"errors"
	"fmt"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/tokenize"
)

// Reason says why an engine is to be asked for a prompt's tokens. It is a label of metrics.
type Reason string

// The reasons.
const (
	NoTokenizer Reason = "no_tokenizer" // there are no files of the model
	NotProven   Reason = "not_proven"   // nobody has compared yet
	Differs     Reason = "differs"      // an engine's tokens were others
	Unsupported Reason = "unsupported"  // something that is not done exactly here
	Adapter     Reason = "adapter"      // a LoRA adapter may have a tokenizer of its own
	Media       Reason = "media"        // images, sounds, videos: the engine knows how many tokens they are
	Refused     Reason = "refused"      // the engine would refuse the request, too
	NotText     Reason = "not_text"     // not valid UTF-8
	Limit       Reason = "limit"        // a bound on work was reached
)

// Reasons returns all of them.
func Reasons() []Reason {
	return []Reason{NoTokenizer, NotProven, Differs, Adapter, Unsupported, Media, Refused, NotText, Limit}
}

// AskError says that an engine is to be asked. Err may hold parts of the request: it is for
// a caller to see, not for a log.
type AskError struct {
	Reason Reason
	Err    error // nil where the reason says all
}

func (e *AskError) Error() string {
	if e.Err == nil {
		return "an engine is to be asked: " + string(e.Reason)
	}
	return fmt.Sprintf("an engine is to be asked: %s: %v", e.Reason, e.Err)
}

func (e *AskError) Unwrap() error { return e.Err }

func ask(r Reason, format string, args ...any) error {
	return &AskError{r, fmt.Errorf(format, args...)}
}

// asking makes an AskError of what a reader, a writer or the tokenizer says.
func asking(err error) error {
	var (
		is          *AskError
		unsupported *jinja.UnsupportedError
		limit       *jinja.LimitError
		past        *api.UnknownPastError
		bad         *chat.BadRequestError
		raised      *jinja.RaisedError
		failed      *jinja.Error
	)
	r := Limit // of time, or of what the tokenizer does for a text
	switch {
	case errors.As(err, &is):
		return err
	case errors.As(err, &unsupported), errors.As(err, &past):
		r = Unsupported
	case errors.As(err, &limit):
	case errors.As(err, &bad), errors.As(err, &raised), errors.As(err, &failed):
		r = Refused
	case errors.Is(err, tokenize.ErrText):
		r = NotText
	}
	return &AskError{r, err}
}
