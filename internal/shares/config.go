package shares

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// Config says who has the shares. Zero in any field but URLs means the default.
type Config struct {
	URLs     []string // of the shares' indexers, 0/n first
	Wait     time.Duration
	Every    time.Duration
	Inflight int
	Token    string // file
	Dial     secure.Dial
}

const (
	defaultWait     = 250 * time.Millisecond
	defaultEvery    = time.Second
	defaultInflight = 1024
)

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	set.Group("Shares")
	set.List(&c.URLs, "shares", nil, `Addresses of the indexers that have the shares of the fleet, http://host:port of 0/n
		first: what workers hold is asked of all of them, and the answer is the union. This program reads no events then.`)
	set.Duration(&c.Wait, "shares-timeout", defaultWait, `How long a share may take to answer. What the workers of one that takes
		longer hold is unknown.`, conf.Between(time.Millisecond, time.Minute))
	set.Duration(&c.Every, "shares-every", defaultEvery, `How often shares are asked how many blocks each rank holds in all, and which ranks
		are stale.`, conf.Between(10*time.Millisecond, time.Hour))
	set.Int(&c.Inflight, "shares-max-inflight", defaultInflight, `Most requests to one share that are under way. It counts as missing
		for those beyond.`, conf.Between(1, 1<<16))
	set.String(&c.Token, "shares-token-file", "", `File with the bearer token that shares are asked with where the question is this
		program's own: one of a reader of all groups. What others ask is passed on with theirs.`)
	set.String(&c.Dial.CA, "shares-ca", "", "File of the authorities, in PEM, that sign the certificates of shares with https, read again when it changes. Empty: the system's.")
	set.String(&c.Dial.Cert, "shares-cert", "", "PEM file of the certificate that shares with https are shown, if they want one; needs --shares-key.")
	set.String(&c.Dial.Key, "shares-key", "", "PEM file of that certificate's key; needs --shares-cert.")
	set.Check(c.Check)
}

// Check refuses addresses that are none, and what is below 0.
func (c *Config) Check() error {
	for _, text := range c.URLs {
		switch u, err := url.Parse(text); {
		case err == nil && u.User != nil:
			return errors.New("--shares: an address has a user, whom nobody would be told of: give --shares-token-file")
		case err != nil || u.Host == "" || u.RawQuery != "" || u.Scheme != "http" && u.Scheme != "https":
			return fmt.Errorf("--shares: %q is no address such as http://10.0.0.7:8090", conf.HideCredentials(text))
		}
	}
	if c.Wait < 0 || c.Every < 0 || c.Inflight < 0 {
		return fmt.Errorf("--shares: %v for an answer, asked every %v, %d requests at once: give nothing below 0", c.Wait, c.Every, c.Inflight)
	}
	if len(c.URLs) > stream.MaxPartitions {
		return fmt.Errorf("--shares: %d addresses, at most %d", len(c.URLs), stream.MaxPartitions)
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.Wait, c.Every, c.Inflight = cmp.Or(c.Wait, defaultWait), cmp.Or(c.Every, defaultEvery), cmp.Or(c.Inflight, defaultInflight)
	return c
}
