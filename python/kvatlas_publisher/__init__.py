"""Tells a kvpublisher beside this process what an engine's KV cache holds.

    publisher = Publisher("/run/engine/kv.sock")
    publisher.stored([11, 12], tokens, parent=None)
    publisher.removed([12])
    publisher.close()

Calls put a message into a bounded queue and return; a thread sends it, connects
again when the connection breaks, and sends again what kvpublisher has not kept.
When the queue is full the oldest messages are dropped: kvpublisher sees the
hole, and the rank begins anew, incomplete. The protocol is in
docs/custom-engines.md. Needs nothing but the standard library.
"""

import collections
import json
import socket
import threading
import time
import uuid

__all__ = ["Publisher"]


class Publisher:
    """The events of one data-parallel rank. Its methods may be called by any thread."""

    def __init__(self, path, dp_rank=0, run=None, count_copies=False, queue=100_000, log=None):
        """path is the Unix socket; run names this run of the engine (default:
        random); queue bounds the messages not yet kept; log, if given, is
        called with a text when something is wrong."""
        self._path = path
        self._hello = {
            "type": "hello", "version": 1, "run": run or uuid.uuid4().hex,
            "dp_rank": dp_rank, "count_copies": count_copies,
        }
        self._limit = queue
        self._log = log or (lambda text: None)
        self._lock = threading.Condition()
        self._lines = collections.deque()  # messages from number _first on
        self._first = 0
        self._sent = 0  # number of the next message to send
        self._closing = False
        self._broken = True
        self._conn = None
        self.dropped = 0  # messages that found the queue full
        self.errors = 0  # messages that kvpublisher could not use
        self._thread = threading.Thread(target=self._run, name="kvatlas-publisher", daemon=True)
        self._thread.start()

    def stored(self, hashes, tokens=None, parent=None, tier="device", local_hashes=None, lora="", salt=""):
        """The blocks became resident, in chain order, each the parent of the next."""
        message = {"type": "stored", "hashes": list(hashes), "tier": tier}
        if parent is not None:
            message["parent"] = parent
        if tokens is not None:
            message["tokens"] = list(tokens)
        if local_hashes is not None:
            message["local_hashes"] = list(local_hashes)
        if lora:
            message["lora"] = lora
        if salt:
            message["salt"] = salt
        self._put(message)

    def removed(self, hashes, tier="device"):
        """The blocks are no longer resident on the tier."""
        self._put({"type": "removed", "hashes": list(hashes), "tier": tier})

    def cleared(self, tier=None):
        """Nothing is resident any more: on the tier, or on any without one."""
        self._put({"type": "cleared"} if tier is None else {"type": "cleared", "tier": tier})

    def pending(self):
        """How many messages were not sent yet."""
        with self._lock:
            return self._first + len(self._lines) - self._sent

    def close(self, timeout=5.0):
        """Sends what waits, for the timeout in seconds at most. Reports whether all was sent."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        self._thread.join(timeout)
        self._disconnect()
        self._thread.join(max(0.1, deadline - time.monotonic()))
        return self.pending() == 0

    def _put(self, message):
        with self._lock:
            if self._closing:
                raise ValueError("the publisher is closed")
            message["seq"] = self._first + len(self._lines)
            self._lines.append((json.dumps(message, separators=(",", ":")) + "\n").encode())
            if len(self._lines) > self._limit:
                self._lines.popleft()
                if self._sent <= self._first:
                    self._sent += 1
                    self.dropped += 1
                self._first += 1
            self._lock.notify_all()

    def _run(self):
        pause = 0.05
        while True:
            try:
                self._session()
                return
            except (OSError, ValueError) as err:
                self._log("kvpublisher at %s: %s" % (self._path, err))
            self._disconnect()
            with self._lock:
                if self._closing:
                    return
                self._lock.wait_for(lambda: self._closing, pause)
            pause = min(2 * pause, 2.0)

    def _session(self):
        """Sends on one connection until close; an exception means that it broke."""
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._lock:
            self._conn, self._broken = conn, False
        conn.settimeout(10)
        conn.connect(self._path)
        conn.sendall((json.dumps(self._hello) + "\n").encode())
        lines = conn.makefile("rb")
        welcome = json.loads(lines.readline() or b"{}")
        if welcome.get("type") != "welcome":
            raise ValueError(welcome.get("error", "no welcome"))
        conn.settimeout(None)
        with self._lock:
            self._sent = min(max(welcome["next"], self._first), self._first + len(self._lines))
        reader = threading.Thread(target=self._read, args=(conn, lines), daemon=True)
        reader.start()
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._closing or self._broken or self._sent < self._first + len(self._lines))
                if self._broken:
                    raise OSError("the connection broke")
                index = self._sent - self._first
                if index == len(self._lines):
                    return  # closing, and everything is sent
                batch = [self._lines[i] for i in range(index, min(index + 256, len(self._lines)))]
                at = self._sent
            conn.sendall(b"".join(batch))
            with self._lock:
                self._sent = max(self._sent, at + len(batch))

    def _read(self, conn, lines):
        """Reads what kvpublisher tells, until the connection ends."""
        try:
            for line in lines:
                told = json.loads(line)
                with self._lock:
                    if told.get("type") == "kept":
                        while self._lines and self._first < min(told["next"], self._sent):
                            self._lines.popleft()
                            self._first += 1
                if told.get("type") == "error":
                    self.errors += 1
                    self._log("kvpublisher: %s" % told.get("error"))
        except (OSError, ValueError):
            pass  # the session tells
        with self._lock:
            if self._conn is conn:
                self._broken = True
                self._lock.notify_all()

    def _disconnect(self):
        with self._lock:
            conn, self._conn = self._conn, None
        if conn is not None:
            try:
                conn.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # not connected
            conn.close()
