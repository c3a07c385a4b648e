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

// scheme begins a URL among others that are separated by commas.
var scheme = regexp.MustCompile(`(?:^|,)\s*[A-Za-z][A-Za-z0-9+.-]*://`)

// HideCredentials returns a URL, or several with commas, without what stands
// before an @ in each. What might be part of a badly written password counts as
// one: rather too much is hidden.
func HideCredentials(urls string) string {
	var b strings.Builder
	begin := 0 // of what follows a scheme
	for _, at := range append(scheme.FindAllStringIndex(urls, -1), []int{len(urls), len(urls)}) {
		part := urls[begin:at[0]]
		if i := strings.LastIndexByte(part, '@'); i >= 0 {
			part = hidden + part[i:]
		}
		b.WriteString(part + urls[at[0]:at[1]])
		begin = at[1]
	}
	return b.String()
}

// shown returns a value of the setting as it may be printed.
func (s *Setting) shown(value string) string {
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
