//go:build unix

package disk

import (
	"errors"
	"os"
)

// SyncDir writes the names in a directory to the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // the operator's directory
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
