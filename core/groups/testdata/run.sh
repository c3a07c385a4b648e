#!/bin/sh
# Compares core/groups with the prefix cache of a vLLM release: see `make test-groups`.
# Settings, all optional: RELEASE; SEEDS, LAYOUTS and STEPS, how much is compared;
# KVATLAS_GROUPS_CACHE, where the release (340 MB) and the Python environment are kept; GO.
set -eu
cd "$(dirname "$0")/../../.."

skip() {
	echo "SKIP test-groups: $*"
	exit 0
}

release=${RELEASE:-0.33.0}
cache=${KVATLAS_GROUPS_CACHE:-.cache/groups}
python=
for p in python3.14 python3.13 python3.12 python3.11 python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		python=$p
		break
	fi
done
[ -n "$python" ] || skip "no Python 3.11 or newer with venv"

mkdir -p "$cache"
if ! "$cache/venv/bin/python" -c 'import msgspec' 2>/dev/null; then
	rm -rf "$cache/venv"
	"$python" -m venv "$cache/venv"
	"$cache/venv/bin/python" -m pip install --quiet msgspec ||
		skip "msgspec cannot be installed; is the Python package index reachable?"
fi
if [ ! -d "$cache/vllm-$release" ]; then
	"$cache/venv/bin/python" -m pip download --quiet --no-deps --only-binary :all: -d "$cache/wheels" "vllm==$release" ||
		skip "vllm $release cannot be downloaded"
	"$cache/venv/bin/python" - "$cache" "$release" <<'UNPACK'
import glob, os, sys, zipfile
cache, release = sys.argv[1:]
with zipfile.ZipFile(glob.glob(f"{cache}/wheels/vllm-{release}-*.whl")[0]) as wheel:
    wheel.extractall(f"{cache}/new", [n for n in wheel.namelist() if n.startswith("vllm/") and n.endswith(".py")])
os.rename(f"{cache}/new", f"{cache}/vllm-{release}")
UNPACK
fi
said=$(mktemp)
trap 'rm -f "$said"' EXIT
for seed in ${SEEDS:-1 2 3}; do
	"$cache/venv/bin/python" core/groups/testdata/vllm_groups.py "$cache/vllm-$release" "$seed" "${LAYOUTS:-300}" "${STEPS:-40}" payloads >"$said"
	KVATLAS_GROUPS=$said "${GO:-go}" test -count=1 -v -run "AgreesWithVLLM|StreamsOfVLLM" ./core/groups
done
