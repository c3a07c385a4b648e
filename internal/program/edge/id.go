package edge

// maxID bounds the ids that clients give, in bytes.
const maxID = 128

// PlainID reports whether an id that a client gives can go into headers, logs and
// labels as it is.
func PlainID[T ~string | ~[]byte](id T) bool {
	if len(id) == 0 || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '/', c == '+', c == '=':
		default:
			return false
		}
	}
	return true
}
