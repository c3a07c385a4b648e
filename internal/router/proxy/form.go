package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"mime"
	"strings"
)

// The bounds on what is looked at of a form: one part's head, and a field.
const (
	maxFormHead  = 8 << 10
	maxFormField = 1 << 10
)

var errForm = errors.New("not a form as its Content-Type says")

// isForm reports whether a Content-Type is that of forms with files.
func isForm(kind string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(kind)), "multipart/form-data")
}

// formField finds a field of a form (RFC 7578), and where in the body its value is;
// nothing if there is none. Nothing of the form is copied. Two fields of the name are
// an error: which of them an engine takes is not known.
func formField(kind string, data []byte, name string) (value []byte, at span, err error) {
	_, params, err := mime.ParseMediaType(kind)
	if err != nil || params["boundary"] == "" {
		return nil, at, errForm
	}
	delimiter := []byte("\r\n--" + params["boundary"])
	pos := 0
	if bytes.HasPrefix(data, delimiter[2:]) {
		pos = len(delimiter) - 2
	} else if i := bytes.Index(data, delimiter); i >= 0 { // behind a preamble
		pos = i + len(delimiter)
	} else {
		return nil, at, errForm
	}
	for !bytes.HasPrefix(data[pos:], []byte("--")) {
		begin, field, err := formHead(data[pos:])
		if err != nil {
			return nil, at, err
		}
		begin += pos
		n := bytes.Index(data[begin-2:], delimiter) // the end of the head may begin it
		if n < 0 {
			return nil, at, errForm
		}
		end := begin - 2 + n
		if pos = end + len(delimiter); field != name {
			continue
		}
		if end = max(begin, end); at.end > 0 || end-begin > maxFormField {
			return nil, at, fmt.Errorf("the form's field %s is there twice, or too long", name)
		}
		value, at = data[begin:end], span{begin, end}
	}
	return value, at, nil
}

// formHead reads what is between a delimiter and a part's content: it returns where
// that begins, and the part's name.
func formHead(data []byte) (begin int, name string, err error) {
	head := data[:min(len(data), maxFormHead)]
	i := bytes.Index(head, []byte("\r\n"))
	if i < 0 || len(bytes.Trim(head[:i], " \t")) > 0 {
		return 0, "", errForm
	}
	for {
		line := i + 2
		n := bytes.Index(head[line:], []byte("\r\n"))
		if n < 0 {
			return 0, "", errForm
		}
		if i = line + n; n == 0 {
			return i + 2, name, nil
		}
		key, value, _ := strings.Cut(string(head[line:i]), ":")
		if !strings.EqualFold(strings.TrimSpace(key), "Content-Disposition") {
			continue
		}
		if _, params, err := mime.ParseMediaType(value); err == nil {
			name = params["name"]
		}
	}
}
