#!/bin/sh
# Talks to kvrouter with the Python packages openai and anthropic: see `make test-clients`.
# Settings, all optional: KVATLAS_CLIENTS_CACHE, where the Python environment is kept; GO.
set -eu
cd "$(dirname "$0")/../../../.."

skip() {
	echo "SKIP test-clients: $*"
	exit 0
}

cache=${KVATLAS_CLIENTS_CACHE:-.cache/clients}
python=
for p in python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
		python=$p
		break
	fi
done
[ -n "$python" ] || skip "no Python 3.10 or newer with venv"
if ! "$cache/venv/bin/python" -c 'import anthropic, openai' 2>/dev/null; then
	rm -rf "$cache/venv"
	mkdir -p "$cache"
	"$python" -m venv "$cache/venv"
	"$cache/venv/bin/python" -m pip install --quiet openai==3.54.0 anthropic==2.12.0 || skip "the packages cannot be installed; is the Python package index reachable?"
fi
KVATLAS_CLIENTS_PYTHON=$(cd "$cache" && pwd)/venv/bin/python exec "${GO:-go}" test -count=1 -v -run 'TestPythonClients' ./internal/testing/e2e
