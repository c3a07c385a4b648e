"""Writes small.json.gz: tokenizers as small as can be, of every kind, and what the library makes of texts.

    pip install tokenizers sentencepiece protobuf
    python3 small.py TEXTS.json      a list of texts, as TestSmall writes it
"""

import gzip
import io
import json
import os
import struct
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = json.load(open(sys.argv[1]))
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = WORD % (SHORT, SHORT) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
OWN = r"\p{Lu}?\p{Ll}+(?!x)|\p{Lu}+?|(?>\p{N}{2,4})|[^\p{L}\p{N}\s]+?|\s++"
N, P = normalizers, pre_tokenizers
all_made = []


def made(name, tok, edit=None, texts=TEXTS):
    file = json.loads(tok.to_str())
    if edit:
        edit(file)
    tok = Tokenizer.from_str(json.dumps(file))
    ids = [[e.ids for e in tok.encode_batch(texts, add_special_tokens=s)] for s in (False, True)]
    all_made.append({"name": name, "file": file, "plain": ids[0], "special": [a if a != b else None for a, b in zip(ids[1], ids[0])]})


def bpe(pre, norm=None, size=340, alphabet=True, specials=("<|end|>", "<|start|>"), **model):
    tok = Tokenizer(models.BPE(**model))
    tok.pre_tokenizer, tok.normalizer = pre, norm or tok.normalizer
    tok.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=list(specials), initial_alphabet=P.ByteLevel.alphabet() if alphabet else [], limit_alphabet=256 if alphabet else 150))
    return tok


def split(pattern, behavior="isolated", invert=False):
    return P.Split(Regex(pattern), behavior, invert)


def bytes_after(*steps):
    return P.Sequence([*steps, P.ByteLevel(add_prefix_space=False, use_regex=False)])


def pairs(file):
    file["model"]["merges"] = [m.split(" ") if isinstance(m, str) else m for m in file["model"]["merges"]]


def texts_of_pairs(file):
    file["model"]["merges"] = [" ".join(m) for m in file["model"]["merges"]]


def ignore(file):
    file["model"]["ignore_merges"] = True
    del file["model"]["merges"][50:90]


def byte_tokens(file):
    vocab, merges = file["model"]["vocab"], file["model"]["merges"]
    for b in range(256):
        vocab.setdefault("<0x%02X>" % b, len(vocab))
    file["model"]["byte_fallback"] = True


def some_byte_tokens(file):
    byte_tokens(file)
    for b in range(0xE5, 0xF0):
        del file["model"]["vocab"]["<0x%02X>" % b]
    names = sorted(file["model"]["vocab"], key=file["model"]["vocab"].get)
    file["model"]["vocab"] = {n: i for i, n in enumerate(names)}


made("cl100k-1", bpe(bytes_after(split(CL100K % "")), N.NFC()), pairs)
made("cl100k-3", bpe(bytes_after(split(CL100K % "{1,3}"))), texts_of_pairs)
made("ignore-merges", bpe(bytes_after(split(CL100K % "{1,3}"))), ignore)
made("o200k", bpe(bytes_after(split(O200K))))
made("o200k-removed", bpe(bytes_after(split(O200K, "removed", True))))
made("deepseek", bpe(bytes_after(*map(split, DEEPSEEK)), N.Sequence([])))
made("gpt2", bpe(P.ByteLevel(add_prefix_space=True)))
made("digits", bpe(P.Sequence([P.Punctuation("merged_with_next"), P.Digits(True), P.ByteLevel(add_prefix_space=False)]), N.NFKC()))
for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
    made("own-" + behavior, bpe(bytes_after(split(OWN, behavior, behavior == "removed")), N.NFKD()) if behavior == "isolated" else bpe(bytes_after(split(OWN, behavior)), size=200))
metaspace = N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")])
made("llama2", bpe(None, metaspace, 340, False, ["<unk>", "<s>"], unk_token="<unk>", fuse_unk=True), byte_tokens)
made("gemma", bpe(P.Split(" ", "merged_with_previous"), N.Replace(" ", "▁"), 340, False, ["<unk>"], unk_token="<unk>", fuse_unk=True), byte_tokens)
made("some-bytes", bpe(None, metaspace, 400, False, ["<unk>"], unk_token="<unk>", fuse_unk=True), some_byte_tokens)
made("unknown", bpe(P.Whitespace(), N.Sequence([N.Strip(), N.Lowercase(), N.StripAccents()]), 300, False, ["<unk>"], unk_token="<unk>"))
made("no-unknown", bpe(P.WhitespaceSplit(), None, 300, False))
for scheme in ("first", "always", "never"):
    made("metaspace-" + scheme, bpe(P.Metaspace(prepend_scheme=scheme, split=scheme != "never"), None, 300, False, ["<unk>"], unk_token="<unk>", fuse_unk=True))

tok = bpe(bytes_after(split(CL100K % "")), N.Lowercase())
tok.add_special_tokens([AddedToken("<l>", lstrip=True), AddedToken("<r>", rstrip=True), AddedToken("<lr>", lstrip=True, rstrip=True, special=True)])
tok.add_tokens([AddedToken("word", single_word=True), AddedToken("The", normalized=True), AddedToken("<|End", normalized=False), AddedToken("  ", normalized=False)])
tok.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="<|start|> $A <|end|>", special_tokens=[("<|start|>", 1), ("<|end|>", 0)])])
made("added", tok)

tok = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
tok.normalizer, tok.pre_tokenizer = N.BertNormalizer(), P.BertPreTokenizer()
tok.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=400, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]"], limit_alphabet=120))
tok.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
made("wordpiece", tok)
tok.normalizer = N.BertNormalizer(strip_accents=False, lowercase=False)
made("wordpiece-cased", tok)

tok = Tokenizer(models.Unigram())
tok.normalizer, tok.pre_tokenizer = N.NFKC(), P.Metaspace()
tok.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=1000, show_progress=False, unk_token="<unk>", special_tokens=["<unk>", "</s>"]))
made("unigram", tok)
tok.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Metaspace(prepend_scheme="first")])
made("unigram-words", tok, lambda file: (file["model"].update(byte_fallback=True), file["model"]["vocab"].extend([["<0x%02X>" % b, -20.5] for b in range(256)])))

# Precompiled: a table that SentencePiece made of a few rules, and one that has every byte for a key, by which
# grapheme clusters show.
RULES = {"A": "a", "e\u0301": "\xe9", "a\u0323": "\u1ea1", "a\u0323\u0307": "\u1ea1\u0307", "\r": " ", "\n": " ", "\t": " ", "\xa0": " ", "\u3000": " ", "\u200b": "", "\u200d": "", "\xad": "",
         "\ufb01": "fi", "\xbd": "1\u20442", "\u2460": "1", "\ufdfa": "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647", "\u30ab\uff9e": "\u30ac", "\uff76": "\u30ab", "\uff76\uff9e": "\u30ac", "\u0915\u094d": "\u0915"}
with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as f:
    f.writelines(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n" for a, b in RULES.items())
    f.flush()
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d"] * 9), model_writer=out, vocab_size=20, hard_vocab_limit=False, normalization_rule_tsv=f.name, minloglevel=2)
model = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
tok.normalizer = N.Sequence([N.Precompiled(model.normalizer_spec.precompiled_charsmap), N.Replace(Regex(" {2,}"), " ")])
tok.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Metaspace()])
tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
made("precompiled", tok)
array = [256 << 10] + [0] * 1023
for b in range(1, 256):
    array[256 ^ b] = b | 1 << 8 | 512 << 10
    array[256 ^ b ^ 512] = 1 << 31
tok = Tokenizer(models.Unigram([("<unk>", 0.0), ("Y", -1.0), ("YY", -1.5)], 0))
tok.normalizer = N.Precompiled(struct.pack("<1025I", 4096, *array) + b"Y\0")
made("clusters", tok)

with open(os.path.join(HERE, "small.json.gz"), "wb") as f:
    f.write(gzip.compress(json.dumps({"texts": TEXTS, "tokenizers": all_made}, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0))
print(len(all_made), "tokenizers,", os.path.getsize(os.path.join(HERE, "small.json.gz")), "bytes")
