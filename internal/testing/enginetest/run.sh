#!/bin/sh
# Runs the tests against the engines' own publishers: see `make test-engines`.
# Settings, all optional: KVATLAS_ENGINES, the folder of engine_publisher.py;
# KVATLAS_ENGINES_CACHE, where packages (about 1.5 GB) and the Python
# environment are kept; GO; RUN, a pattern of tests; RACE=-race, which takes
# several times as long.
set -eu
cd "$(dirname "$0")/../../.."
target=test-engines
. internal/testing/python.sh

engines=${KVATLAS_ENGINES:-../shared/engines}
cache=${KVATLAS_ENGINES_CACHE:-.cache/engines}
[ -f "$engines/engine_publisher.py" ] || skip \
	"no engine_publisher.py in $engines. It is the harness that runs the publishers of engine releases;" \
	"set KVATLAS_ENGINES to its folder."

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
engines=$(cd "$engines" && pwd)
pyenv "$cache/venv" zmq,msgspec,pydantic pyzmq msgspec pydantic

# No timeout of go test's own: downloading the releases takes as long as it takes.
KVATLAS_TEST_ENGINES=1 KVATLAS_ENGINES=$engines KVATLAS_ENGINES_CACHE=$cache KVATLAS_ENGINES_PYTHON=$python \
	exec "${GO:-go}" test ${RACE:-} -count=1 -v -timeout=60m -run "${RUN:-.}" ./internal/testing/enginetest
