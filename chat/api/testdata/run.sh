#!/bin/sh
# Compares what packages chat and chat/api make of requests with what vLLM's and SGLang's own code makes of them: see
# `make test-apis`.
# Settings, all optional: KVATLAS_API_CACHE, where the wheel and the Python environment are kept;
# KVATLAS_API_CASES, requests an API (2000); KVATLAS_TEST_SEED; GO.
set -eu
cd "$(dirname "$0")/../../.."

release=0.33.0
sglang_release=0.5.23
skip() {
	echo "SKIP test-apis: $*"
	exit 0
}

cache=${KVATLAS_API_CACHE:-.cache/apis}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

python=
for p in python3.14 python3.13 python3.12 python3.11 python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		python=$p
		break
	fi
done
[ -n "$python" ] || skip "no Python 3.11 or newer with venv"
venv=$cache/venv
if ! "$venv/bin/python" -c 'import openai, pydantic, openai_harmony, transformers, orjson, jsonschema, msgspec' 2>/dev/null; then
	rm -rf "$venv"
	"$python" -m venv "$venv"
	"$venv/bin/python" -m pip install --quiet openai==3.54.0 oss-harmony==0.0.11 transformers==5.19.0 jinja2==3.1.6 orjson jsonschema msgspec || skip "openai cannot be installed; is the Python package index reachable?"
fi
# Of the wheel only the files that read requests are needed, which need no torch.
unpack() { # package release folder
	[ ! -d "$3/$1" ] || return 0
	tmp=$(mktemp -d)
	"$venv/bin/python" -m pip download --quiet --no-deps --only-binary :all: -d "$tmp" "$1==$2" || skip "the wheel of $1 cannot be fetched"
	"$venv/bin/python" -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.endswith(".py")])' "$tmp/$1"-*.whl "$3"
	rm -rf "$tmp"
}
vllm=$cache/vllm-$release
sglang=$cache/sglang-$sglang_release
unpack vllm "$release" "$vllm"
unpack sglang "$sglang_release" "$sglang"

# gpt-oss's tokenizer is one of those that make test-tokens fetches; without it, harmony is not compared.
tokens=${KVATLAS_TEST_TOKENS:-.cache/tokens}
[ ! -d "$tokens" ] || tokens=$(cd "$tokens" && pwd)

KVATLAS_API_PYTHON=$venv/bin/python KVATLAS_API_VLLM=$vllm KVATLAS_API_SGLANG=$sglang KVATLAS_API_CASES=${KVATLAS_API_CASES:-} KVATLAS_TEST_TOKENS=$tokens \
	exec "${GO:-go}" test -count=1 -v -run 'TestJudged|TestEngines|TestSGLang' ./chat/api ./internal/testing/chattest
