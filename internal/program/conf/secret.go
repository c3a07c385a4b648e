package conf

import (
	"errors"
	"regexp"
	"strings"
)

// Secret marks a setting whose value may hold credentials before an @, without
// the scheme of a URL too: they are never printed. Of settings without the mark
// those are not printed that stand in a URL.
func Secret() Option { return func(x *Setting) { x.Secret = true } }

// hidden stands in place of credentials.
const hidden = "***"

// scheme begins a URL.
var scheme = regexp.MustCompile(`^\s*[A-Za-z][A-Za-z0-9+.-]*://`)

// HideCredentials returns a URL, or several with commas, without what stands
// between the first one's scheme and the last @. A comma or a scheme before that
// may be part of a password: rather too much is hidden, and of several addresses
// with credentials the last host is what is left.
func HideCredentials(urls string) string {
	at := strings.LastIndexByte(urls, '@')
	if at < 0 {
		return urls
	}
	return scheme.FindString(urls[:at]) + hidden + urls[at:]
}

// shown returns a value of the setting as it may be printed.
func (s *Setting) shown(value string) string {
	if s.Kind == kindCredential {
		return Credential(value).String()
	}
	if s.Secret || strings.Contains(value, "://") {
		return HideCredentials(value)
	}
	return value
}

// hide returns the error about a value of the setting, without what may not be
// printed of it.
func (s *Setting) hide(value string, err error) error {
	if s.shown(value) != value {
		return errors.New("the value is not acceptable (it has credentials and is not shown)")
	}
	return err
}

// fewest is how long a credential is at least that Hide looks for: a shorter one would be found in
// any word, and nothing prints it anyway.
const fewest = 8

// Hide returns a text, as of an error, without what may not be printed of the settings in force.
func (s *Set) Hide(text string) string {
	for _, x := range s.settings {
		values := []string{x.text()}
		if x.Kind == "list" {
			values = append(values, strings.Split(values[0], ",")...) // errors are about one of them
		}
		for _, value := range values {
			switch {
			case x.shown(value) == value:
			case x.Kind != kindCredential:
				at := strings.LastIndexByte(value, '@')
				from := len(scheme.FindString(value[:at]))
				text = strings.ReplaceAll(text, value[from:at+1], hidden+"@")
			case len(value) >= fewest:
				text = strings.ReplaceAll(text, value, hidden)
			}
		}
	}
	return text
}

// HideIn does so with an error, which stays what it is if there is nothing to hide.
func (s *Set) HideIn(err error) error {
	if text := s.Hide(err.Error()); text != err.Error() {
		return withoutCredentials{err, text}
	}
	return err
}

// withoutCredentials is an error with another text.
type withoutCredentials struct {
	error
	text string
}

func (w withoutCredentials) Error() string { return w.text }

// Unwrap returns the error itself.
func (w withoutCredentials) Unwrap() error { return w.error }
