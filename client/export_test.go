package client

// ParseBinary reads an answer in the binary form.
func ParseBinary(body []byte) (*Matches, error) {
	m := new(Matches)
	return m, m.UnmarshalBinary(body)
}
