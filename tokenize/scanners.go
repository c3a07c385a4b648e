package tokenize

import "strings"

// The patterns of served models that have a scanner written for them, by their exact text.
// TestScanners compares each with the same pattern run by the general machine.
const (
	wordParts  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	wordParts2 = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
	hanParts   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+`
	hanParts2  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*`
	shortened  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	blanks     = `|\s*[\r\n]+|\s+(?!\S)|\s+`
)

func known(pattern string) scanner {
	pattern = escapeLines(pattern)
	switch pattern {
	case `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
		`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`:
		return gpt2{}
	case shortened + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks,
		`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks:
		return &cl100k{digits: 3, letter: classL, longS: pattern[:3] == "(?i"}
	case shortened + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks,
		`(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks:
		return &cl100k{digits: 1, letter: classL, longS: pattern[:3] == "(?i"}
	case shortened + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + blanks:
		return &cl100k{digits: 1, letter: classL | classM, longS: true}
	case wordParts + shortened + `?|` + wordParts2 + shortened + `?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanks:
		return &o200k{digits: 3, contractions: true, slash: true}
	case wordParts + `|` + wordParts2 + `|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanks:
		return &o200k{digits: 1, slash: true}
	case wordParts + `|` + wordParts2 + `|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanks:
		return &o200k{digits: 3, slash: true}
	case KimiPattern:
		return &o200k{digits: 3, contractions: true, han: true}
	case `\p{N}{1,3}`:
		return numbers{3}
	case `\p{N}`:
		return numbers{1}
	}
	return nil
}

// escapeLines writes line ends as some files have them, where others have the line ends themselves.
func escapeLines(pattern string) string {
	return strings.NewReplacer("\r", `\r`, "\n", `\n`).Replace(pattern)
}

// KimiPattern is the pattern of Kimi's tokenizer, which its tiktoken.model does not hold.
const KimiPattern = `[\p{Han}]+|` + hanParts + shortened + `?|` + hanParts2 + shortened + `?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanks

// scannerFor is the scanner of a pattern: one written for it, or the general machine.
func scannerFor(pattern string) (scanner, error) {
	if s := known(pattern); s != nil {
		return s, nil
	}
	re, err := compile(pattern)
	if err != nil {
		return nil, refused("pattern %.200q: %w", pattern, err)
	}
	return re, nil
}
