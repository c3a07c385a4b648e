package core

// WithoutVectors calls f as on a processor without them. No other test may run meanwhile.
func WithoutVectors(f func()) {
	had := vectors
	vectors = false
	defer func() { vectors = had }()
	f()
}
