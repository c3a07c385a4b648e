//go:build !unix

package upstream

import "time"

// alive reports whether an idle connection is worth trying: where the kernel
// cannot be asked, if it has not been idle for longer than servers bear.
func (k *conn) alive() bool { return time.Since(k.since) < time.Second }
