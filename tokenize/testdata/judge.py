"""Answers with the ids that a library gives to texts.

    judge.py tokenizers|fastokens|tekken|kimi FILE

Asked on standard input: the number of texts, 1 if special tokens are to be added, and each text with its
length; all numbers of 32 bits. Answers on standard output: the number of each text's ids, and the ids.
With 2 or 3 in the place of that 1 it is the other way round: ids are asked for, their bytes as texts above, and
answered with texts, of which 3 leaves special tokens out. 4 and 5 are 0 and 1 with the ids' offsets for answers, in
characters, two numbers each.
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

    def encode(texts, how):
        encodings = tok.encode_batch(texts, add_special_tokens=how % 2 == 1)
        return [e.ids if how < 2 else [n for pair in e.offsets for n in pair] for e in encodings]

    return encode, tok.decode_batch


def tekken_judge(path):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tok = Tekkenizer.from_file(path)
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    policy = {True: SpecialTokenPolicy.IGNORE, False: SpecialTokenPolicy.KEEP}
    return (
        lambda texts, special: [tok.encode(t, bos=special, eos=False) for t in texts],
        lambda ids, skip: [tok.decode(i, policy[skip]) for i in ids],
    )


def kimi_judge(path):
    import kimi

    tok = kimi.Kimi(path)
    return lambda texts, special: [tok.encode(t) for t in texts], None


def main():
    encode, decode = {"tokenizers": tokenizers_judge, "tekken": tekken_judge, "kimi": kimi_judge}[sys.argv[1]](sys.argv[2])
    inp, out = sys.stdin.buffer, sys.stdout.buffer
    while head := inp.read(8):
        n, special = struct.unpack("<II", head)
        texts = []
        for _ in range(n):
            (size,) = struct.unpack("<I", inp.read(4))
            texts.append(inp.read(size))
        if special in (2, 3):
            for text in decode([list(struct.unpack("<%dI" % (len(t) // 4), t)) for t in texts], special == 3):
                out.write(struct.pack("<I", len(text.encode())))
                out.write(text.encode())
            out.flush()
            continue
        texts = [t.decode() for t in texts]
        for ids in encode(texts, special):
            out.write(struct.pack("<I", len(ids)))
            out.write(numpy.array(ids, dtype="<u4").tobytes())
        out.flush()


main()
