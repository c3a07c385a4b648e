package proc

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// notifier tells systemd of the program's state: datagrams of NAME=value lines
// to the socket that NOTIFY_SOCKET names
// (https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html).
// Without that variable it does nothing. It is safe for concurrent use.
type notifier struct {
	address  string        // "": nobody listens
	watchdog time.Duration // between two signs of life; 0: none is awaited
	log      *slog.Logger
	failed   sync.Once // it is said once that systemd cannot be told
}

// newNotifier reads the variables that systemd sets for a service.
func newNotifier(getenv func(string) string, log *slog.Logger) *notifier {
	n := &notifier{address: getenv("NOTIFY_SOCKET"), log: log}
	if n.address == "" {
		return n
	}
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return n // meant for another process of the service
	}
	if text := getenv("WATCHDOG_USEC"); text != "" {
		usec, err := strconv.ParseInt(text, 10, 64)
		if err != nil || usec < 2 || usec > int64(24*time.Hour/time.Microsecond) {
			log.Warn("systemd's watchdog is not served: WATCHDOG_USEC is no number of microseconds up to a day", "value", text)
			return n
		}
		// sd_watchdog_enabled(3): every half of the time at the latest.
		n.watchdog = time.Duration(usec) * time.Microsecond / 2
	}
	return n
}

// notifyWait bounds how long a datagram may wait for room in systemd's queue.
const notifyWait = 5 * time.Second

// send sends the lines as one datagram. A failure is logged, once: the program
// is there to serve, and systemd acts by itself on what it does not hear.
func (n *notifier) send(lines ...string) {
	if n.address == "" {
		return
	}
	if err := n.write(strings.Join(lines, "\n")); err != nil {
		n.failed.Do(func() {
			n.log.Warn("systemd cannot be told of this program's state (see NOTIFY_SOCKET)", "error", err)
		})
	}
}

func (n *notifier) write(text string) (err error) {
	if n.address[0] != '/' && n.address[0] != '@' { // @: an abstract name, which package net knows too
		return fmt.Errorf("%q is neither a path nor an abstract socket", n.address)
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("open the socket: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.SetWriteDeadline(time.Now().Add(notifyWait)); err != nil {
		return fmt.Errorf("bound the wait: %w", err)
	}
	if _, err := c.Write([]byte(text)); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}
