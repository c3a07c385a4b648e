"""Slow clients for SECONDS: 1,000 idle connections, 300 that never end their
headers and 200 that never end a body of 1 MB, each of which sends a little
every second.

    kvbench http --workers 64 --blocks 64 --serve 127.0.0.1:8099 --bodies DIR &
    python3 bench/slow.py 127.0.0.1:8099 SECONDS
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
end = time.time() + float(sys.argv[2])
while time.time() < end:
    for i, (s, first, more) in enumerate(slow):
        try:
            s.sendall(more)
        except OSError:  # the server has closed it; come again
            slow[i] = (connect(first), first, more)
    time.sleep(1)
