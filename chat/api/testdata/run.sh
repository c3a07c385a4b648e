#!/bin/sh
# Compares what packages chat and chat/api make of requests with what vLLM's and SGLang's own code makes of them: see
# `make test-apis`.
# Settings, all optional: KVATLAS_API_CACHE, where the wheel and the Python environment are kept;
# KVATLAS_API_CASES, requests an API (2000); KVATLAS_TEST_SEED; GO.
set -eu
cd "$(dirname "$0")/../../.."

release=0.33.0
sglang_release=0.5.23
target=test-apis
. internal/testing/python.sh

cache=${KVATLAS_API_CACHE:-.cache/apis}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

pyenv "$cache/venv" openai,pydantic,openai_harmony,transformers,orjson,jsonschema,msgspec \
	openai==3.54.0 oss-harmony==0.0.11 transformers==5.19.0 jinja2==3.1.6 orjson jsonschema msgspec
# Of the wheels only the files that read requests are needed, which need no torch.
vllm=$cache/vllm-$release
sglang=$cache/sglang-$sglang_release
unpack vllm "$release" "$vllm"
unpack sglang "$sglang_release" "$sglang"

# gpt-oss's tokenizer is one of those that make test-tokens fetches; without it, harmony is not compared.
tokens=${KVATLAS_TEST_TOKENS:-.cache/tokens}
[ ! -d "$tokens" ] || tokens=$(cd "$tokens" && pwd)

KVATLAS_API_PYTHON=$python KVATLAS_API_VLLM=$vllm KVATLAS_API_SGLANG=$sglang KVATLAS_API_CASES=${KVATLAS_API_CASES:-} KVATLAS_TEST_TOKENS=$tokens \
	exec "${GO:-go}" test -count=1 -v -run 'TestJudged|TestEngines|TestSGLang' ./chat/api ./internal/testing/chattest
