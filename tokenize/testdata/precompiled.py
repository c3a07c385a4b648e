"""Makes tokenizers with the normalizer Precompiled: precompiled.py DIR

No package carries one: SentencePiece's own tables (pip install sentencepiece) in a tokenizer.json as transformers
converts XLM-RoBERTa (xlmr) and T5 (t5), whose tables they are, with case folding besides (fold); and one that has
every byte for a key, so that grapheme clusters show in the ids (marks)."""

import glob
import io
import os
import struct
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

here = os.path.dirname(os.path.abspath(__file__))
lines = []
for name in sorted(glob.glob(os.path.join(here, "..", "..", "**", "*.md"), recursive=True) + glob.glob(os.path.join(here, "..", "*.go"))):
    lines += [l for l in open(name, encoding="utf-8", errors="replace").read().splitlines() if l.strip()]


def trained(rule):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, vocab_size=4000, model_type="unigram",
                                             normalization_rule_name=rule, character_coverage=0.9995, minloglevel=2, num_threads=1)
    m = pb.ModelProto()
    m.ParseFromString(out.getvalue())
    return m


def save(name, vocab, normalizer, pre, around):
    tok = Tokenizer(models.Unigram(vocab, 0))
    tok.normalizer, tok.pre_tokenizer = normalizer, pre
    tok.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    tok.add_tokens([AddedToken("ﬁne①", normalized=True)])
    tok.post_processor = processors.TemplateProcessing(single=around, special_tokens=[(t, tok.token_to_id(t)) for t in around.split() if t != "$A"])
    os.makedirs(os.path.join(sys.argv[1], name), exist_ok=True)
    tok.save(os.path.join(sys.argv[1], name, "tokenizer.json"))


meta = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
spaces = normalizers.Replace(Regex(" {2,}"), " ")
for name, rule, steps, pre, around in [
    ("xlmr", "nmt_nfkc", [], pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta]), "<s> $A </s>"),
    ("t5", "nmt_nfkc", [spaces], meta, "$A </s>"),
    ("fold", "nmt_nfkc_cf", [normalizers.Strip(left=False, right=True), spaces], meta, "$A </s>"),
]:
    m = trained(rule)
    vocab = [(p.piece, p.score) for p in m.pieces]
    save(name, vocab, normalizers.Sequence([normalizers.Precompiled(m.normalizer_spec.precompiled_charsmap), *steps]), pre, around)

array = [256 << 10] + [0] * 1023
for b in range(1, 256):
    array[256 ^ b] = b | 1 << 8 | 512 << 10
    array[256 ^ b ^ 512] = 1 << 31
marks = normalizers.Precompiled(struct.pack("<1025I", 4096, *array) + b"Y\0")
save("marks", [("<unk>", 0.0), ("Y", -1.0), ("YY", -1.5), ("\0", -3.0)], marks, None, "<s> $A </s>")
