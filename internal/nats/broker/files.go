package broker

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// The files beside the server's data.
const (
	lockFile        = "kvatlas.lock"
	addressFile     = "address"          // host:port of the running (or last) server
	credentialsFile = "credentials.json" // made once, 0600
	runningFile     = "running"          // from before a server starts until it has stopped in order
)

// credentials let a process of this machine into the embedded server.
type credentials struct {
	User     string `json:"user"`
	Password string `json:"password"`
}

// loadOrMakeCredentials reads the credentials or makes them at the first
// start. Only the holder of the lock calls it.
func loadOrMakeCredentials(dir string) (credentials, error) {
	c, err := readCredentials(dir)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	c = credentials{User: "kvatlas", Password: rand.Text()}
	data, err := json.Marshal(c) //nolint:gosec // this file is where the password is kept
	if err != nil {
		return c, fmt.Errorf("broker: credentials: %w", err)
	}
	return c, writeFile(filepath.Join(dir, credentialsFile), data)
}

func readCredentials(dir string) (credentials, error) {
	var c credentials
	path := filepath.Join(dir, credentialsFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("broker: credentials: %w", err)
	}
	if err := json.Unmarshal(data, &c); err != nil || c.User == "" || c.Password == "" {
		return c, fmt.Errorf("broker: credentials file %s is damaged: stop every process that uses it, remove it, and start again", path)
	}
	return c, nil
}

func writeAddress(dir, addr string) error {
	return writeFile(filepath.Join(dir, addressFile), []byte(addr+"\n"))
}

func readAddress(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, addressFile))
	if err != nil {
		return "", fmt.Errorf("broker: address: %w", err)
	}
	addr := strings.TrimSpace(string(data))
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return "", fmt.Errorf("broker: address file in %s: %w", dir, err)
	}
	return addr, nil
}

// writeFile replaces path by data, readable by its owner only: written aside,
// synced, renamed, so that a reader sees the old content or the new.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // 0600
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("broker: %w", err)
	}
	return nil
}
