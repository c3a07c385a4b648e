package proxy

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/httpconf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/reload"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/accesslog"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/breaker"
)

// Config holds what a Proxy is made with. Fleet, Metrics, Log and Health are needed;
// the other fields have no defaults here.
type Config struct {
	Fleet   *fleet.Fleet
	Metrics *obs.Metrics
	Log     *slog.Logger
	Health  *edge.Health // of the process, at all of its ports
	Tracer  trace.Tracer // nil: no spans
	// Unknown says why the workers are not known yet; "" if they are. nil: always.
	Unknown func() string
	// Unread says why it is not known yet what they hold; "" if it is. nil: always.
	Unread func() string

	Indexed         bool   // the routers have an index: texts are worth tokenizing
	Tokens          string // TokensEngine, TokensBytes or TokensNone
	TokenCache      int64  // bytes
	TokenizeTimeout time.Duration
	MaxPrompt       int // tokens of a prompt that are looked at
	// TokenizeHedge is when another engine is asked for a text's tokens as long as it is
	// not known how long nearly all answers take, and TokenizeHedgeLeast the least after
	// that; 0 is never. TokenizeBreaker leaves engines out that fail at it.
	TokenizeHedge, TokenizeHedgeLeast time.Duration
	TokenizeBreaker                   breaker.Config

	// Tokenizers says where models' own tokenizers are, and how they are compared with
	// engines; Ask, Log and Metrics are the Proxy's.
	Tokenizers tokens.Config
	// PassTokens: a prompt's tokens that were made here go with its request to engines that
	// take them.
	PassTokens bool

	httpconf.Limits         // of the server that the Proxy is the handler of
	InflightShare   float64 // the part of MaxInflight that one client may have; 0 is all
	// Of the bodies of all requests under way, in bytes: those in memory, of one of
	// them there, those in files, and the part of both that one client may have.
	BodyMemory, BodyEach, BodyFiles int64
	BodyDir                         string // where files are made; "" is the system's
	BodyShare                       float64
	Selection                       bool     // serve package selection's routes
	ForwardClient                   bool     // tell engines the client's address
	PassHeaders                     []string // of clients, in canonical form, that engines get although they look like credentials, where Access has tokens
	Origins                         []string // whose pages may ask from browsers; see CheckOrigins
	PassThrough                     bool     // pass on what does not generate from a prompt, too
	// Routes are kinds of engines and further paths: those that anybody who may
	// generate may use; see newRoutes. All others administer engines.
	Routes []string
	// Administration says who may: AdminOperators, AdminOpen or AdminNone.
	Administration        string
	AdministrationTimeout time.Duration  // for one engine's answer
	Access                *secure.Access // nil: everybody may ask

	Gateway GatewayConfig

	Retries     int           // of one request
	RetryShare  float64       // of all requests
	RetryBurst  int           // at once, whatever the share
	RetryWait   time.Duration // before a second retry; twice as long before each further one
	Retry500    bool          // try another worker after status 500, or one that refuses, once
	DialTimeout time.Duration
	FirstByte   time.Duration             // wait for an answer to begin; 0 is for ever
	EngineIdle  time.Duration             // between chunks of an answer
	AskSilent   bool                      // ask engines that give nothing themselves; see silence.go
	IdleConns   int                       // kept open to each engine
	KeepAlive   time.Duration             // for how long; 0 is for 3 seconds
	TLS         *reload.Value[tls.Config] // of https connections to engines; nil: the usual

	Console      http.Handler   // of what is below /console/; nil: there is none
	Decisions    *account.Log   // that the fleet's routers keep; nil: none
	AccessLog    *accesslog.Log // nil: none
	MetricLabels int            // tenants, and workers, that metrics name

	Queue         int // requests of a model that wait while all its workers are busy
	QueueOrder    string
	QueuePriority string        // what `priority` of a body means
	QueueAge      time.Duration // in which a tenant that waits gains one of priority
	QueueTimeout  time.Duration
	BusyStatus    int // of the answer when all workers are busy

	// MaxKept is how many responses, files and batches are remembered with the engine
	// that keeps them, and AskTimeout the time that an engine has to say that it has one.
	// MaxAsking is how many requests may ask all engines for one at once.
	MaxKept, MaxAsking int
	AskTimeout         time.Duration

	// Responses is how many bytes of what responses said are remembered, for those that go on
	// with them; 0 is none. ResponseBytes bounds an answer, ResponseLife is for how long.
	Responses     int64
	ResponseBytes int
	ResponseLife  time.Duration
	// TellTurn tells other routers of a response; nil: there are none. HearTurn hears.
	TellTurn func(msg []byte) error

	SessionHeader string // "" for none
	// SessionHarness: sessions are known by what agent harnesses call them, too, and SessionPrefix:
	// where tokens are not looked up by the messages that they go on with. (Not where the
	// mode does not go by load: see route.Settings.WeighsLoad.)
	SessionHarness, SessionPrefix bool

	SessionLife time.Duration
	MaxSessions int

	// Trust lists who may use the headers that override choices.
	Trust        []netip.Prefix
	WorkerHeader bool // name the worker in the answer, and to those of Trust say what it was chosen by
}
