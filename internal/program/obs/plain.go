package obs

import (
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// words are what errors mean, by the words of the client of NATS, which only those who know it understand.
var words = strings.NewReplacer(
	// It speaks of a buffer that is not there: internal/nats/broker turns it off.
	nats.ErrReconnectBufExceeded.Error(), "no connection to NATS, it goes on by itself once there is one",
	nats.ErrNoServers.Error(), "no NATS server takes a connection there: check the address, and that it runs",
	nats.ErrNoResponders.Error(), "nobody on NATS answers that: see that who is asked runs, and that the server has JetStream on",
	nats.ErrTimeout.Error(), "NATS did not answer in time: see that its server is well",
	nats.ErrConnectionClosed.Error(), "the connection to NATS is closed",
	nats.ErrConnectionReconnecting.Error(), "the connection to NATS is being made anew",
	nats.ErrDisconnected.Error(), "no connection to NATS, it goes on by itself once there is one",
	nats.ErrStaleConnection.Error(), "the NATS server has gone silent",
	nats.ErrAuthorization.Error(), refused, "nats: Authorization Violation", refused, // as the server says it
	nats.ErrAuthExpired.Error(), refused, nats.ErrAuthRevoked.Error(), refused, nats.ErrAccountAuthExpired.Error(), refused,
	jetstream.ErrNoHeartbeat.Error(), "the NATS server sends nothing of the stream: see that it is well",
	jetstream.ErrNoStreamResponse.Error(), "no stream on NATS takes the message",
	// As the server says it, in the words of the client's two packages.
	"nats: API error: code=503 err_code=10008 description=JetStream system temporarily unavailable", leaderless,
	"nats: JetStream system temporarily unavailable", leaderless,
)

const leaderless = "nobody leads that on NATS at the moment: " + SeeCluster

// SeeCluster is what to look at where NATS is there, and does not do what it is asked.
const SeeCluster = "see that most servers of the NATS cluster run, reach each other and have room"

const refused = "the NATS server does not take the credentials: give it the user, or this program the right ones"

// Plain returns the error with what it means in place of the words of the client of NATS: what is
// wrong, and what to do. It wraps err, or is err where there are none.
func Plain(err error) error {
	if err == nil {
		return nil
	}
	said := err.Error()
	if text := words.Replace(said); text != said {
		return &plainError{err, text}
	}
	return err
}

type plainError struct {
	err  error
	text string
}

func (e *plainError) Error() string { return e.text }
func (e *plainError) Unwrap() error { return e.err }
