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
