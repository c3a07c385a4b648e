"""What Kimi's tokenizer does with a text before and around tiktoken, written from its description:
texts go to tiktoken in parts of 400,000 characters, and of those in parts in which no run of white space
or of other characters is longer than 25,000."""

import tiktoken

PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""",
    r""" ?[^\s\p{L}\p{N}]+[\r\n]*""",
    r"""\s*[\r\n]+""",
    r"""\s+(?!\S)""",
    r"""\s+""",
])


class Kimi:
    def __init__(self, path):
        import base64

        ranks = {}
        for line in open(path, "rb"):
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        specials = {"[BOS]": len(ranks), "[EOS]": len(ranks) + 1, "<|im_end|>": len(ranks) + 2, "<|im_user|>": len(ranks) + 3}
        self.model = tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=specials)

    def encode(self, text):
        ids = []
        for i in range(0, len(text), 400_000):
            for part in self.parts(text[i:i + 400_000]):
                ids += self.model.encode(part, allowed_special="all", disallowed_special=())
        return ids

    @staticmethod
    def parts(s):
        start, run, space = 0, 0, None
        for i, c in enumerate(s):
            if c.isspace() == space:
                run += 1
                if run > 25_000:
                    yield s[start:i]
                    start, run = i, 1
            else:
                space, run = c.isspace(), 1
        yield s[start:]
