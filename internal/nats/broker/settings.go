package broker

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
)

// Declare adds the settings of the broker to the set.
func (c *Config) Declare(set *conf.Set) {
	set.Group("Broker")
	set.String(&c.URL, "nats", Embedded, `The NATS server: "embedded" runs one in this process, or joins the process that
		already runs one on the same data directory; else the address of your own, such as nats://host:4222, or several
		with commas.`, conf.Secret())
	set.String(&c.DataDir, "data-dir", DefaultDataDir(os.Getenv), `Directory of an embedded server's messages, address and
		credentials. Made if absent, and private to its owner.`,
		conf.ShowDefault("$STATE_DIRECTORY, else $XDG_STATE_HOME/kvatlas, else ~/.local/state/kvatlas"))
	set.Int(&c.Port, "nats-port", 0, `Port of an embedded server, on 127.0.0.1. 0 takes the one it had before, or a free
		one; it is written beside the data.`, conf.Between(0, 65535))
	set.Bytes(&c.MaxStore, "nats-max-store", 0, `Most bytes that an embedded server keeps on disk. 0 leaves it to the
		server: three quarters of the free space.`)
	set.Duration(&c.Sync, "nats-sync", defaultSync, `How often an embedded server syncs what it has stored to the disk. A process
		that is killed loses nothing, whatever this is; a machine that loses power loses so much, which replicas notice and ask
		the publishers for.`, conf.Between(time.Millisecond, time.Minute))
	set.Bool(&c.SyncAlways, "nats-sync-always", false, `Sync each message of an embedded server before it is acknowledged. Give it, too, where a
		server of your own does so (sync_interval: always): a stream that this program makes then takes batches, synced as a
		whole, of what the publishers of one process send.`)
	set.Int(&c.Replicas, "nats-replicas", 0, `Copies in the cluster of each stream and bucket that this program makes. 0: three
		where the server is of a cluster of three or more, else one.`, conf.Between(0, 5))
	set.String(&c.CredsFile, "nats-creds", "", "File with a user's JWT and seed, for --nats nats://….")
	set.String(&c.NKeyFile, "nats-nkey", "", "File with an nkey seed, for --nats nats://….")
	set.String(&c.CAFile, "nats-ca", "", "PEM file of root certificates that the server's certificate is checked with.")
	set.String(&c.CertFile, "nats-cert", "", "PEM file of the client certificate; needs --nats-key.")
	set.String(&c.KeyFile, "nats-key", "", "PEM file of the client certificate's key; needs --nats-cert.")
	set.Check(func() error {
		if c.URL == None {
			return nil
		}
		if err := checkURL(c.URL); err != nil {
			return fmt.Errorf("--nats %w", err)
		}
		_, err := clusterOptions(*c)
		return err
	})
}

// checkURL finds what is no address before anybody waits for it to answer. Its
// errors show no credentials, which those of package url quote.
func checkURL(urls string) error {
	if urls == Embedded {
		return nil
	}
	shown := conf.HideCredentials(urls) // of one of several it cannot be said where its password ends
	for text := range strings.SplitSeq(urls, ",") {
		scheme, rest, found := strings.Cut(strings.TrimSpace(text), "://")
		if !found {
			scheme, rest = "nats", scheme
		}
		_, err := url.Parse(scheme + "://" + rest)
		switch {
		case !found && !strings.Contains(rest, ":"):
			return fmt.Errorf("%s: neither %q nor an address such as nats://host:4222", shown, Embedded)
		case !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme):
			return fmt.Errorf("%s: no address of NATS begins with %s://; give nats://, tls://, ws:// or wss://", shown, scheme)
		case err != nil:
			return fmt.Errorf("%s: no address such as nats://host:4222 or nats://user:password@host:4222", shown)
		case rest == "":
			return fmt.Errorf("%s: no host", shown)
		}
	}
	return nil
}

// DefaultDataDir returns where an embedded server keeps its data unless told:
// systemd's state directory, else the user's (the XDG base directories, see
// https://specifications.freedesktop.org/basedir-spec/latest/), so that every
// program of a user finds the same server from anywhere. Without a home it is
// .kvatlas in the working directory.
func DefaultDataDir(getenv func(string) string) string {
	if dir := getenv("STATE_DIRECTORY"); dir != "" {
		return filepath.SplitList(dir)[0]
	}
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // relative ones count as absent, says the specification
		return filepath.Join(dir, "kvatlas")
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "kvatlas")
	}
	return ".kvatlas"
}
