package discover

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/discover/kube"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// Config holds the settings of kvpods.
type Config struct {
	Kube      kube.Config
	Namespace string
	Pool      string
	Selector  string
	Name      string
	MaxPods   int
	Watch     time.Duration

	Model     string
	BlockSize int
	Group     string
	HTTPPort  int
	Events    int
	Replay    int
	Snapshot  int
	HTTPS     bool
	Engines   secure.EngineSettings

	Servers     []string
	ServerToken string // a file
	Dial        secure.Dial
	Every       time.Duration
	Retry       time.Duration
	Timeout     time.Duration
	Concurrency int

	Admin   admin.Settings
	Access  secure.Settings
	Log     obs.LogConfig
	Service proc.ServiceConfig

	settings *conf.Set
}

// Declare adds the settings to the set.
func (c *Config) Declare(set *conf.Set) {
	c.settings = set
	set.String(&c.Service.AddressFile, "address-file", "", `File to write the HTTP address to (host:port and a line end) once the
		server listens, for scripts that let it choose the port. It is the admin port's. Removed at the end.`)
	set.Duration(&c.Service.StopTimeout, "stop-timeout", 10*time.Second, `Time for the end, after the drain delay. There is none here, and registrations stay.`, conf.Between(0, time.Hour))
	set.Group("Pods")
	set.String(&c.Pool, "pool", "", `InferencePool (inference.networking.k8s.io/v1) whose pods are discovered, and at whose ports their
		engines answer: several ports are ranks. This or --selector is needed.`)
	set.String(&c.Selector, "selector", "", "Label selector of the pods: app=vllm,tier!=test.")
	set.String(&c.Name, "name", "", `What the names of the workers have in the middle: k8s/NAMESPACE/NAME/POD. Whatever is registered
		as such and has no pod is unregistered, so two that discover different pods have different names. Empty: the pool's; with
		--selector it is needed.`)
	set.Int(&c.MaxPods, "max-pods", 10000, "Pods that are followed; more are left out and counted.", conf.Between(1, 1_000_000))
	c.Kube.Declare(set, &c.Namespace)
	set.Duration(&c.Watch, "watch", 5*time.Minute, "How long a watch of the API server lasts before the next one goes on.", conf.Between(time.Second, time.Hour))
	set.Group("Engines")
	set.String(&c.Model, "model", "", "Name of the model. Of pods whose annotation kvatlas/model does not name one. Empty: their engine is asked (/v1/models).")
	set.Int(&c.BlockSize, "block-size", 0, `Tokens of a block. Of pods without the annotation kvatlas/block-size. 0: their engine is asked (vLLM's
		/metrics, SGLang's /server_info).`, conf.Between(0, blockhash.MaxBlockSize))
	set.String(&c.Group, "group", "", "Routing group or tenant. Of pods without the annotation kvatlas/group.")
	set.Int(&c.HTTPPort, "engine-http-port", 8000, "Port of the engines' OpenAI endpoints; with --pool it is the pool's.", conf.Between(1, 65535))
	set.Bool(&c.HTTPS, "engine-https", false, "The engines' endpoints speak TLS.")
	set.Int(&c.Events, "events-port", 5557, "Port of the engines' ZMQ events, of rank 0; each rank adds its number. 0: they publish none.", conf.Between(0, 65535))
	set.Int(&c.Replay, "replay-port", 0, "Port of the engines' ZMQ replay, likewise. 0: they have none.", conf.Between(0, 65535))
	set.Int(&c.Snapshot, "snapshot-port", 0, "Port of the engines' snapshots (snapshot_endpoint), likewise. 0: they give none.", conf.Between(0, 65535))
	c.Engines.Declare(set)
	set.Group("Registration")
	set.List(&c.Servers, "register-at", nil, `URLs at which workers are registered: of kvindexer, or of kvrouter's admin port. With NATS one will do (a
		Service), and all replicas know of them; without, name each. Needed.`)
	set.String(&c.ServerToken, "register-token-file", "", "File of an operator's token for them. Read again for each request.")
	set.String(&c.Dial.CA, "register-ca", "", "PEM file of authorities that their certificates are checked with, in place of the system's. Read again when it changes.")
	set.String(&c.Dial.Cert, "register-cert", "", "PEM file of the certificate that they are shown, if they want one; needs --register-key. Read again when it changes.")
	set.String(&c.Dial.Key, "register-key", "", "PEM file of that certificate's key; needs --register-cert.")
	set.Duration(&c.Every, "every", 15*time.Second, "How often it is looked whether all is registered that should be, and nothing else.", conf.Between(10*time.Millisecond, time.Hour))
	set.Duration(&c.Retry, "retry", time.Second, "Pause after a request in vain; doubled each time, to a minute at most.", conf.Between(time.Millisecond, time.Minute))
	set.Duration(&c.Timeout, "request-timeout", 5*time.Second, "Time for one request to an engine or a place of registration.", conf.Between(10*time.Millisecond, time.Minute))
	set.Int(&c.Concurrency, "concurrency", 8, "Engines that are asked at once, and requests that each place of registration gets at once.", conf.Between(1, 256))
	c.Access.Declare(set, secure.Address{Setting: admin.Setting, Value: &c.Admin.Listen})
	c.Admin.Declare(set, "127.0.0.1:8093")
	set.Check(c.check)
	c.Log.Declare(set)
}

// check reports what is missing or cannot be.
func (c *Config) check() error {
	switch {
	case (c.Pool == "") == (c.Selector == ""):
		return errors.New("give either --pool or --selector")
	case c.Selector != "" && c.Name == "":
		return errors.New("--name is needed with --selector: it tells these workers from those of another kvpods")
	case len(c.Servers) == 0:
		return errors.New("--register-at is needed: where workers are registered")
	}
	for setting, name := range map[string]string{"--pool": c.Pool, "--kube-namespace": c.Namespace, "--name": c.Name} {
		if name != "" && !kube.IsName(name) {
			return fmt.Errorf("%s: %q is no name of Kubernetes", setting, name)
		}
	}
	for _, s := range c.Servers {
		if u, err := url.Parse(s); err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--register-at: %s is no http(s)://host:port without a user", strconv.Quote(conf.HideCredentials(s)))
		}
	}
	return nil
}

// open returns the pods' namespace, and what engines are shown.
func (c *Config) open(log *slog.Logger) (*secure.Engines, error) {
	if c.Namespace == "" {
		c.Namespace = kube.Namespace()
	}
	if c.Namespace == "" {
		return nil, conf.Wrong{Err: errors.New("--kube-namespace is needed outside of a pod")}
	}
	if c.Name == "" {
		c.Name = c.Pool
	}
	return c.Engines.Open(log)
}
