package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// errNotReady is wrapped by the error of a program that answers that it is not.
var errNotReady = errors.New("not ready")

// ready asks the program at the URL whether it is ready.
func (c *config) ready(ctx context.Context, base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is no URL such as http://127.0.0.1:8090: %w", conf.HideCredentials(base), errUse)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	why, err := askReady(ctx, client, u.JoinPath("readyz").String()+"?verbose")
	switch {
	case err != nil:
		return err
	case why != "":
		if c.json {
			if err := c.print(map[string]any{"url": conf.HideCredentials(base), "ready": false, "reason": why}); err != nil {
				return err
			}
			return errSaid
		}
		return fmt.Errorf("%w: %s", errNotReady, why)
	case c.json:
		return c.print(map[string]any{"url": conf.HideCredentials(base), "ready": true})
	}
	_, err = fmt.Fprintln(c.out, "ready")
	return err
}

// client returns what asks: it trusts the authorities of --ca, if given, else the system's.
func (c *config) client() (*http.Client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caFile != "" {
		var err error
		if trust.RootCAs, err = secure.Roots(c.caFile); errors.As(err, new(*fs.PathError)) {
			return nil, fmt.Errorf("--ca: %w", err)
		} else if err != nil {
			return nil, fmt.Errorf("--ca: %w: %w", err, errUse)
		}
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: trust}}, nil
}

// maxReason bounds what is read of an answer.
const maxReason = 64 << 10

func askReady(ctx context.Context, client *http.Client, address string) (why string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", fmt.Errorf("making the request: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("asking: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReason))
	if err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return "", nil
	case http.StatusServiceUnavailable:
		return strings.TrimSpace(string(body)), nil
	}
	return "", fmt.Errorf("%s answers %s; is it a program of kvatlas?", address, resp.Status)
}
