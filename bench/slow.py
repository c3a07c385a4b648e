"""Slow clients for SECONDS: 1,000 idle connections, 300 that never end their
headers and 200 that never end a body of 1 MB, each of which sends a little
TIMES (1) a second, evenly spread.

    kvbench http --workers 64 --blocks 64 --serve 127.0.0.1:8099 --bodies DIR &
    python3 bench/slow.py 127.0.0.1:8099 SECONDS [TIMES]
"""
import socket
import sys
import time

host, port = sys.argv[1].rsplit(":", 1)
HEADER = b"POST /v1/find_matches HTTP/1.1\r\nHost: x\r\n"
BODY = HEADER + b"Content-Length: 1000000\r\n\r\n{"


def connect(first):
    s = socket.create_connection((host, int(port)))
    s.sendall(first)
    return s


idle = [connect(b"") for _ in range(1000)]
slow = [(connect(HEADER), HEADER, b"X: y\r\n") for _ in range(300)]
slow += [(connect(BODY), BODY, b" ") for _ in range(200)]
period = 1 / float(sys.argv[3]) if len(sys.argv) > 3 else 1.0
start = time.time()
due = start
while due < start + float(sys.argv[2]):
    for i, (s, first, more) in enumerate(slow):
        wait = due + period * i / len(slow) - time.time()
        if wait > 0:
            time.sleep(wait)
        try:
            s.sendall(more)
        except OSError:  # the server has closed it; come again
            slow[i] = (connect(first), first, more)
    due += period
