#!/usr/bin/env python3
"""What the console's readers cost a running kvindexer.

    bench/console.py ADDRESS PID [SECONDS] [READERS] [RATE] [MODEL]

In turns, without readers of its events and with: the program's processor time, the time
that lookups take which are sent one after the other, RATE of them a second, and the
stream's bytes.
"""
import http.client, json, multiprocessing, os, random, sys, time

ADDRESS, PID = sys.argv[1], int(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 10
READERS = int(sys.argv[4]) if len(sys.argv) > 4 else 10
RATE = float(sys.argv[5]) if len(sys.argv) > 5 else 200
MODEL = sys.argv[6] if len(sys.argv) > 6 else ""


def read(count, frames):
    c = http.client.HTTPConnection(ADDRESS)
    c.request("GET", "/console/api/events?metric=held")
    answer = c.getresponse()
    while True:
        part = answer.read1(1 << 20)
        if not part:
            return
        count.value += len(part)
        frames.value += part.count(b"event: overview")


def busy():
    with open(f"/proc/{PID}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def look(seconds):
    c = http.client.HTTPConnection(ADDRESS)
    took, began = [], time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        time.sleep(max(0, began + len(took) / RATE - now))
        body = json.dumps({"model": MODEL, "hashes": [random.getrandbits(63) for _ in range(16)]})
        at = time.perf_counter()
        c.request("POST", "/v1/find_matches", body)
        answer = c.getresponse()
        text = answer.read()
        took.append(time.perf_counter() - at)
        if answer.status != 200:
            sys.exit(f"{answer.status} {text[:300]}")
    return sorted(took)


if not MODEL:
    c = http.client.HTTPConnection(ADDRESS)
    c.request("GET", "/v1/spaces")
    MODEL = json.load(c.getresponse())["spaces"][0]["model"]
for turn in range(6):
    readers, count, frames = [], multiprocessing.Value("Q"), multiprocessing.Value("Q")
    if turn % 2:
        readers = [multiprocessing.Process(target=read, args=(count, frames), daemon=True) for _ in range(READERS)]
        for r in readers:
            r.start()
        time.sleep(2)
    before, bytes0, frames0, began = busy(), count.value, frames.value, time.time()
    took = look(SECONDS)
    span = time.time() - began
    print(f"{len(readers)} readers: {100 * (busy() - before) / span:.1f} % of a core; lookups p50 {1e3 * took[len(took) // 2]:.2f} ms, p99 "
          f"{1e3 * took[int(len(took) * .99)]:.2f} ms; {(count.value - bytes0) / span / max(1, len(readers)) / 1e3:.1f} KB/s each, "
          f"{(frames.value - frames0) / span / max(1, len(readers)):.2f} frames/s each", flush=True)
    for r in readers:
        r.terminate()
