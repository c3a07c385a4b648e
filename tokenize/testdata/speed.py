"""How fast a library encodes: speed.py tokenizers|fastokens|fastokens-threads FILE TEXTS.json

TEXTS.json is a list of texts. Prints cold_mb_s (each text once, one after the other, from a fresh
start) and warm_mb_s (the best of further rounds), both also by processor time of all threads, and the
ids of all texts as one JSON line. One thread: fastokens has its own setting for that, and would otherwise
work with as many as there are CPUs, whatever RAYON_NUM_THREADS is; fastokens-threads leaves it so, on all CPUs."""

import json
import os
import sys
import time

library, path, texts = sys.argv[1], sys.argv[2], json.load(open(sys.argv[3]))
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if library == "fastokens-threads":
    os.sched_setaffinity(0, range(os.cpu_count()))
else:
    os.environ["RAYON_NUM_THREADS"] = os.environ["FASTOKENS_BPE_THREADS"] = "1"
if library == "tokenizers":
    from tokenizers import Tokenizer
else:
    from fastokens import Tokenizer
at = time.perf_counter()
tok = Tokenizer.from_file(path)
load = time.perf_counter() - at
size = sum(len(t.encode()) for t in texts) / 1e6
rounds = []
processor = []
for _ in range(2 if library == "tokenizers" else 4):
    at, used = time.perf_counter(), time.process_time()
    ids = [tok.encode(t, add_special_tokens=False) for t in texts]
    rounds.append(time.perf_counter() - at)
    processor.append(time.process_time() - used)
ids = [list(getattr(e, "ids", e)) for e in ids]
print(json.dumps({
    "cpus": len(os.sched_getaffinity(0)), "load_ms": load * 1e3,
    "cold_mb_s": size / rounds[0], "cold_cpu_mb_s": size / processor[0],
    "warm_mb_s": size / min(rounds[1:]), "warm_cpu_mb_s": size / min(processor[1:]), "ids": ids}))
