//go:build !unix

package spool

import (
	"errors"
	"os"
)

// createDeleted: a file that is open cannot be deleted here.
func createDeleted(string) (*os.File, error) { return nil, errors.ErrUnsupported }

func unread([]byte) {}

func mapFile(*os.File, int64) ([]byte, func(), error) { return nil, nil, errors.ErrUnsupported }
