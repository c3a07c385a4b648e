#!/bin/sh
# Runs the tests against the engines' own publishers: see `make test-engines`.
# Settings, all optional: KVATLAS_ENGINES, the folder of engine_publisher.py;
# KVATLAS_ENGINES_CACHE, where packages (about 1.5 GB) and the Python
# environment are kept; GO; RUN, a pattern of tests; RACE=-race, which takes
# several times as long.
set -eu
cd "$(dirname "$0")/../../.."

skip() {
	echo "SKIP test-engines: $*"
	exit 0
}

engines=${KVATLAS_ENGINES:-../shared/engines}
cache=${KVATLAS_ENGINES_CACHE:-.cache/engines}
[ -f "$engines/engine_publisher.py" ] || skip \
	"no engine_publisher.py in $engines. It is the harness that runs the publishers of engine releases;" \
	"set KVATLAS_ENGINES to its folder."

python=
for p in python3.14 python3.13 python3.12 python3.11 python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		python=$p
		break
	fi
done
[ -n "$python" ] || skip "no Python 3.11 or newer with venv"

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
engines=$(cd "$engines" && pwd)
venv=$cache/venv
if ! "$venv/bin/python" -c 'import zmq, msgspec, pydantic' 2>/dev/null; then
	echo "making a Python environment in $venv"
	rm -rf "$venv"
	"$python" -m venv "$venv"
	"$venv/bin/python" -m pip install --quiet pyzmq msgspec pydantic ||
		skip "pyzmq, msgspec and pydantic cannot be installed; is the Python package index reachable?"
fi

# No timeout of go test's own: downloading the releases takes as long as it takes.
KVATLAS_TEST_ENGINES=1 KVATLAS_ENGINES=$engines KVATLAS_ENGINES_CACHE=$cache KVATLAS_ENGINES_PYTHON=$venv/bin/python \
	exec "${GO:-go}" test ${RACE:-} -count=1 -v -timeout=60m -run "${RUN:-.}" ./internal/testing/enginetest
