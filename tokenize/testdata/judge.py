"""Answers with the ids that a library gives to texts.

    judge.py tokenizers|fastokens|tekken|kimi FILE

Asked on standard input: the number of texts, 1 if special tokens are to be added, and each text with its
length; all numbers of 32 bits. Answers on standard output: the number of each text's ids, and the ids.
"""

import os
import struct
import sys

import numpy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def tokenizers_judge(path):
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(path)
    tok.no_truncation()
    tok.no_padding()
    return lambda texts, special: [e.ids for e in tok.encode_batch(texts, add_special_tokens=special)]


def tekken_judge(path):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tok = Tekkenizer.from_file(path)
    return lambda texts, special: [tok.encode(t, bos=special, eos=False) for t in texts]


def kimi_judge(path):
    import kimi

    tok = kimi.Kimi(path)
    return lambda texts, special: [tok.encode(t) for t in texts]


def main():
    encode = {"tokenizers": tokenizers_judge, "tekken": tekken_judge, "kimi": kimi_judge}[sys.argv[1]](sys.argv[2])
    inp, out = sys.stdin.buffer, sys.stdout.buffer
    while head := inp.read(8):
        n, special = struct.unpack("<II", head)
        texts = []
        for _ in range(n):
            (size,) = struct.unpack("<I", inp.read(4))
            texts.append(inp.read(size).decode())
        for ids in encode(texts, bool(special)):
            out.write(struct.pack("<I", len(ids)))
            out.write(numpy.array(ids, dtype="<u4").tobytes())
        out.flush()


main()
