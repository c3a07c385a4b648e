"""Writes a byte-level tokenizer.json's tokens as a .tiktoken file: totiktoken.py FROM TO"""

import base64
import json
import os
import sys

printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [b for b in range(256) if b not in printed]
byte = {chr(b): b for b in printed} | {chr(256 + i): b for i, b in enumerate(others)}
vocab = json.load(open(sys.argv[1]))["model"]["vocab"]
os.makedirs(os.path.dirname(sys.argv[2]), exist_ok=True)
with open(sys.argv[2], "wb") as f:
    for token, rank in sorted(vocab.items(), key=lambda v: v[1]):
        f.write(base64.b64encode(bytes(byte[c] for c in token)) + b" %d\n" % rank)
