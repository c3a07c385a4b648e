"""Writes decode.json.gz: what the library makes of ids, with each kind of decoder, by the tokenizers of small.json.gz."""

import gzip
import json
import os
import random

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
small = json.load(gzip.open(os.path.join(HERE, "small.json.gz")))
files = {t["name"]: t["file"] for t in small["tokenizers"]}
META = "▁"


def of(kind, **fields):
    return {"type": kind, **fields}


def chain(*steps):
    return of("Sequence", decoders=list(steps))


def replace(a, b):
    return of("Replace", pattern={"String": a}, content=b)


def strip(content, start):
    return of("Strip", content=content, start=start, stop=0)


def meta(scheme):
    return of("Metaspace", replacement=META, prepend_scheme=scheme, split=True)


BYTES = of("ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True)
LLAMA = chain(replace(META, " "), of("ByteFallback"), of("Fuse"), strip(" ", 1))
CASES = {
    "added": [BYTES, chain(BYTES), chain(BYTES, strip(" ", 2)), chain(of("Fuse"), BYTES), None],
    "o200k": [BYTES, chain(replace("Ġ", " "), of("Fuse"))],
    "deepseek": [BYTES],
    "gpt2": [BYTES],
    "llama2": [LLAMA, chain(of("ByteFallback"), replace(META, "__")), chain(replace(META, " "), of("ByteFallback"), strip(" ", 1), of("Fuse"))],
    "gemma": [chain(replace(META, " "), of("ByteFallback"), of("Fuse")), of("ByteFallback")],
    "some-bytes": [LLAMA],
    "unknown": [None, of("Fuse"), strip("t", 2)],
    "metaspace-first": [meta("first")],
    "metaspace-never": [meta("never"), BYTES],
    "metaspace-always": [meta("always"), None],
    "wordpiece": [of("WordPiece", prefix="##", cleanup=True), of("WordPiece", prefix="##", cleanup=False)],
    "wordpiece-cased": [of("WordPiece", prefix="##", cleanup=True), of("WordPiece", prefix="a", cleanup=True)],
    "unigram": [meta("always"), None],
    "unigram-words": [chain(of("ByteFallback"), meta("always")), chain(meta("first"), of("ByteFallback"))],
}
r = random.Random(11)
out = []
for name, decoders in CASES.items():
    for decoder in decoders:
        file = dict(files[name], decoder=decoder)
        tok = Tokenizer.from_str(json.dumps(file))
        size = tok.get_vocab_size()
        lists = [tok.encode(t).ids[:80] for t in r.sample(small["texts"], 8)]
        for i in range(14):
            ids = [r.randrange(size) for _ in range(r.randrange(24))]
            if i % 3 == 0:
                ids = [x for t in r.sample(lists[:8], 3) for x in t[r.randrange(4) : r.randrange(12)]] + ids[:2]
            if i % 5 == 0:
                ids[1:1] = [size + 7, 0, 1, 2**31]
            lists.append(ids)
        out.append({"name": name, "decoder": decoder, "ids": lists, "texts": tok.decode_batch(lists, False), "skipped": tok.decode_batch(lists, True)})
data = json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()
with open(os.path.join(HERE, "decode.json.gz"), "wb") as f:
    f.write(gzip.compress(data, 9, mtime=0))
print(len(out), "decoders,", os.path.getsize(os.path.join(HERE, "decode.json.gz")), "bytes")
