// Package tokenize makes of a text the token ids that an engine makes of it, in the
// process, and texts of ids: it loads the tokenizer.json that a model comes with, and its
// answers are those of the Hugging Face library, id by id and byte by byte.
//
//	t, err := tokenize.Load(data, tokenize.Options{})
//	ids, err = t.Encode(ids[:0], text, false)
//	text, err = t.Decode(ids, false)
//
// EncodeOffsets says as well where in the text each token is from, for byte-level tokenizers;
// EncodePlain takes special tokens for text.
//
// What a file asks for that is not done exactly here is refused by name when it is loaded
// (ErrUnsupported), never guessed; a decoder when it is used, as encoding does without.
//
// How it stays exact:
//   - What characters are (categories, normal forms, lower case, grapheme clusters) is what the libraries
//     themselves answered for every code point: testdata/tables.py, tables.bin. No table of
//     a Go release takes part, so that a new Go changes no ids.
//   - The patterns of served models have scanners written for them, recognised by the
//     pattern's exact text (scanners.go); any other pattern runs on a machine of our own
//     (regexp.go), which refuses what it does not know, and bounds the steps it takes.
//   - Merging is the textbook's: earliest merge first, leftmost of equal ones; by a scan in
//     short pieces, with a heap in long ones, so that no text takes quadratic time.
//   - The caches hold whole keys, and compare them.
//
// How it is fast: a text is cut into pieces, 32 of which are looked up together (pieces.go), so that the
// memory of one is fetched while others are; short pieces with few tokens, which nearly all are, have half
// a cache line each (cache.go); pairs that do not merge, half of those asked for, are told by a bit, and
// those of two bytes by a table (bpe.go). Tables lie on huge pages where the system has them. Tried and left
// out: proving at loading which tokens are whole pieces of models that merge them (90 ms for 1 %).
//
// What is read: tokenizer.json with BPE (byte-level, or of characters with or without byte
// fallback), WordPiece or Unigram; normalizers NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip,
// StripAccents, Lowercase, BertNormalizer, Precompiled; pre-tokenizers ByteLevel, Split, Digits, Punctuation,
// Whitespace, WhitespaceSplit, BertPreTokenizer, Metaspace; sequences of these; added tokens with
// all their flags; post-processors that put tokens around a single text. Files of tiktoken, whose
// pattern and special tokens the caller gives (KimiPattern), and tekken.json, whose special tokens
// are not looked for in texts. Decoders ByteLevel, ByteFallback, Fuse, Replace, Strip at the beginning, Metaspace
// and WordPiece, and sequences of these. Refused, among others: dropout, subword prefixes and
// suffixes of BPE, lookbehind, \b and \w in patterns.
//
// A loaded tokenizer takes about as much memory as Tokenizer.Memory says: 25 to 50 MB for the
// served models tried, 6 MB of which are the cache of pieces. Each encoding at a time takes besides
// what the longest piece needs, up to 40 bytes for each of its bytes, and a normalized copy of the text.
//
// A Tokenizer does not change after loading but for its caches, and any number of
// goroutines may use it. Encoding allocates nothing for a token.
package tokenize
