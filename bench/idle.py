"""Opens COUNT connections to a server, from SOURCES loopback addresses in turn,
and leaves them idle for a second. Prints how many the server keeps, what it
answered the others, the status that another client gets meanwhile, and the
process's resident memory, in KiB, before and with them.

    kvindexer --http-listen 127.0.0.1:8090 [--http-max-connections …] &
    python3 bench/idle.py 127.0.0.1:8090 PID COUNT SOURCES
"""
import collections
import json
import resource
import select
import socket
import sys
import time

host, port = sys.argv[1].rsplit(":", 1)
pid, count, sources = (int(a) for a in sys.argv[2:5])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def memory():
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def connect(i):
    return socket.create_connection((host, int(port)), source_address=(f"127.0.0.{2 + i % sources}", 0))


def status(s):
    s.settimeout(60)
    try:
        return s.recv(4096).split(b"\r\n")[0].decode() or "closed"
    except ConnectionResetError:
        return "reset"


other = socket.create_connection((host, int(port)))  # of an address of its own
other.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
status(other)
before = memory()
idle = [connect(i) for i in range(count)]
time.sleep(1)
poll = select.poll()
for s in idle:
    poll.register(s, select.POLLIN)
said = {fd for fd, _ in poll.poll(0)}
answers = collections.Counter(status(s) for s in idle if s.fileno() in said)
other.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
print(json.dumps({
    "kept": count - len(said), "refused": dict(answers), "other_client": status(other),
    "rss_before_kib": before, "rss_with_kib": memory(),
}))
