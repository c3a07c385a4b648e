"""Writes ../tables.bin: what the tokenizers library knows of Unicode, asked of itself.

    pip install tokenizers && python3 tables.py

The library's regular expressions, its normalizers and its lower case each follow a version of
Unicode of their own, which none of them tells, and none is that of a Go release. So each code
point is shown to the library, and what it does with it is written down.
"""

import os
import struct
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
              "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"]
HAN = 0x80


def matches(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    for i in range(0, len(CPS), 4096):
        for piece, _ in split.pre_tokenize_str("".join(map(chr, CPS[i:i + 4096]))):
            for ch in piece:
                yield ord(ch)


def uvarint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def runs(values):
    """Runs of equal values over all code points: length, value."""
    out, start = bytearray(), 0
    for c in range(1, 0x110001):
        if c == 0x110000 or values[c] != values[start]:
            out += uvarint(c - start) + bytes([values[start]])
            start = c
    return out


def maps(entries):
    """Code points with what they become: distance from the last, number, code points."""
    out, last = bytearray(), 0
    for c, to in sorted(entries.items()):
        out += uvarint(c - last) + uvarint(len(to))
        for t in to:
            out += uvarint(ord(t))
        last = c
    return out


category = [0] * 0x110000
for i, name in enumerate(CATEGORIES):
    for c in matches(r"\p{%s}" % name) if i else ():
        category[c] = i
for c in matches(r"\p{Han}"):
    category[c] |= HAN

nfd, nfkd, nfc, nfkc = normalizers.NFD(), normalizers.NFKD(), normalizers.NFC(), normalizers.NFKC()
hangul = range(0xAC00, 0xAC00 + 11172)
canonical, compat, lower = {}, {}, {}
for c in CPS:
    ch = chr(c)
    if c not in hangul:
        d = nfd.normalize_str(ch)
        if d != ch:
            canonical[c] = d
        k = nfkd.normalize_str(ch)
        if k != d:
            compat[c] = k
    low = normalizers.Lowercase().normalize_str(ch)
    if low != ch:
        lower[c] = low

# A code point has a combining class if it changes places with one of a known class.
PROBES = [chr(0x334), chr(0x345)]  # classes 1 and 240, the least and the greatest
combining = [0] * 0x110000
for c in CPS:
    ch = chr(c)
    moved = ch in PROBES or c not in canonical and (
        nfd.normalize_str("a" + PROBES[1] + ch) == "a" + ch + PROBES[1] or nfd.normalize_str("a" + ch + PROBES[0]) == "a" + PROBES[0] + ch)
    if moved:
        combining[c] = unicodedata.combining(ch)
        assert combining[c], hex(c)

# Compositions: pairs whose canonical form is one code point.
pairs = {}
for c in canonical:
    one = unicodedata.decomposition(chr(c)).split()
    if len(one) == 2:
        p = chr(int(one[0], 16)) + chr(int(one[1], 16))
        if nfc.normalize_str(p) == chr(c):
            pairs[c] = p

# Traits that the library's parts each define in their own way.
traits = [0] * 0x110000
word, digits, punctuation = pre_tokenizers.Whitespace(), pre_tokenizers.Digits(), pre_tokenizers.Punctuation()
accents = normalizers.StripAccents()
clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
chinese = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False)
bare = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
for c in CPS:
    ch = chr(c)
    cleaned = clean.normalize_str(ch)
    traits[c] = (
        (word.pre_tokenize_str("a" + ch)[0][0] == "a" + ch)
        | (len(digits.pre_tokenize_str("a" + ch)) == 2) << 1
        | (len(punctuation.pre_tokenize_str("a" + ch)) == 2) << 2
        | (accents.normalize_str(ch) == "") << 3
        | (cleaned == "") << 4
        | (cleaned == " ") << 5
        | (chinese.normalize_str(ch) != ch) << 6
        | (c not in canonical and bare.normalize_str(ch) == "") << 7
    )

# Grapheme clusters as the normalizer Precompiled makes them. One by which each byte is the beginning of a key
# writes one Y for a cluster of less than 6 bytes, and one for each code point of a longer one: so it shows where
# clusters end, and by that what each code point does to them.
array = [256 << 10] + [0] * 1023
for b in range(1, 256):
    array[256 ^ b] = b | 1 << 8 | 512 << 10
    array[256 ^ b ^ 512] = 1 << 31
one = normalizers.Precompiled(struct.pack("<1025I", 4096, *array) + b"Y\0")


def marks(s):
    return len(one.normalize_str(s))


CONTROL, PREPEND, PICT, CONSONANT, L, V, T, LV, LVT = range(0x10, 0xA0, 0x10)
clusters = [0] * 0x110000
clusters[0] = CONTROL
for c in CPS[1:]:
    ch = chr(c)
    if marks("a" + ch) == 1:  # it joins what is before; then Extend, and InCB Extend and Linker
        clusters[c] = (1 | (marks("\xa9" + ch + "\u200d\xa9\u0301") == 5) << 1
                       | (marks("\u0915" + ch + "\u094d\u0915\u0301") == 5) << 2 | (marks("\u0915" + ch + "\u0915\u0301") == 4) << 3)
        continue
    what = []
    l, v, t = (marks(ch + x + "\u0301") == 3 for x in "\u1100\u1160\u11a8")
    if marks(ch + "\u0301\u0301") == 2:
        what.append(CONTROL)
    if marks("\xa9\u200d" + ch + "\u0301") == 4:
        what.append(PICT)
    if marks(ch + "\u094d\u0915\u0301") == 4:
        what.append(CONSONANT)
    if marks(ch + "a") == 1:
        what.append(PREPEND)
    elif l:
        what.append(L)
    elif v:  # of four bytes V and LV come to the same
        what.append(V if c > 0xFFFF or marks("\u1160" + ch + "\u0301") == 3 else LV)
    elif t:
        what.append(T if marks("\u11a8" + ch + "\u0301") == 3 else LVT)
    assert len(what) < 2, hex(c)
    clusters[c] = sum(what)

sections = [runs(category), runs(combining), maps(canonical), maps(compat), maps(pairs), maps(lower), runs(traits), runs(clusters)]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tables.bin"), "wb") as f:
    for s in sections:
        f.write(uvarint(len(s)) + s)
print([len(s) for s in sections], len(canonical), len(compat), len(pairs), len(lower), sum(map(bool, combining)))
