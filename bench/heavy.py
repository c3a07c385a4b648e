"""Requests that cost the most for SECONDS on each of CONNECTIONS: 140,000 tokens
(the body that is just taken unless told otherwise), a million tokens, a million
hashes, a million brackets, a gzip bomb, 100,000 fractions, bytes that are no
UTF-8; one after the other. It prints each status.

    python3 bench/heavy.py ADDRESS SECONDS CONNECTIONS [MODEL]
"""
import collections
import gzip
import http.client
import sys
import threading
import time

host, port = sys.argv[1].rsplit(":", 1)
model = sys.argv[4] if len(sys.argv) > 4 else "bench"


def find(field, elements):
    return ('{"model":"%s","%s":[%s]}' % (model, field, ",".join(elements))).encode()


BODIES = {
    "140,000": (find("token_ids", map(str, range(100_000, 240_000))), {}),
    "tokens": (find("token_ids", map(str, range(1_000_000))), {}),
    "hashes": (find("hashes", (str(i << 40) for i in range(1_000_000))), {}),
    "brackets": (b'{"model":' + b"[" * 1_000_000, {}),
    "bomb": (gzip.compress(b'{"model":"' + b"x" * (256 << 20) + b'"}'), {"Content-Encoding": "gzip"}),
    "fractions": (find("hashes", ["1.5"] * 100_000), {}),
    "no UTF-8": (b'{"model":"' + b"\xff" * 100_000 + b'"}', {}),
}
seen = collections.Counter()
end = time.time() + float(sys.argv[2])


def client():
    while time.time() < end:
        for name, (body, headers) in BODIES.items():
            c = http.client.HTTPConnection(host, int(port), timeout=10)
            try:
                c.request("POST", "/v1/find_matches", body, headers)
                answer = c.getresponse()
                answer.read()
                seen[name, answer.status] += 1
            except OSError as e:  # the server has closed it
                seen[name, type(e).__name__] += 1
            c.close()


clients = [threading.Thread(target=client) for _ in range(int(sys.argv[3]))]
for c in clients:
    c.start()
for c in clients:
    c.join()
for (name, status), n in sorted(seen.items(), key=str):
    print(name, status, n)
