#!/bin/sh
# Talks to kvrouter with the Python packages openai and anthropic: see `make test-clients`.
# Settings, all optional: KVATLAS_CLIENTS_CACHE, where the Python environment is kept; GO.
set -eu
cd "$(dirname "$0")/../../../.."
target=test-clients
. internal/testing/python.sh

cache=${KVATLAS_CLIENTS_CACHE:-.cache/clients}
mkdir -p "$cache"
least=10 pyenv "$(cd "$cache" && pwd)/venv" anthropic,openai openai==3.57.0 anthropic==2.14.0
KVATLAS_CLIENTS_PYTHON=$python exec "${GO:-go}" test -count=1 -v -run 'TestPythonClients' ./internal/testing/e2e
