#!/bin/sh
# Compares what SGLang's events tell with what the prefix cache of a release reuses: see `make test-groups`.
# Settings, all optional: SGLANG, the release; SEEDS, HISTORIES and STEPS, how much is compared;
# KVATLAS_GROUPS_CACHE, where the release (40 MB) and the Python environment are kept; GO.
set -eu
cd "$(dirname "$0")/../../.."

skip() {
	echo "SKIP test-groups, SGLang: $*"
	exit 0
}

release=${SGLANG:-0.5.23}
cache=${KVATLAS_GROUPS_CACHE:-.cache/groups}
python=
for p in /usr/bin/python3 python3.14 python3.13 python3.12 python3.11 python3; do
	if "$p" -c 'import sys, venv, ensurepip, torch; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		python=$p
		break
	fi
done
[ -n "$python" ] || skip "no Python 3.11 or newer with venv and torch (Debian: python3-venv and python3-torch)"

mkdir -p "$cache"
if ! "$cache/torch/bin/python" -c 'import msgspec, torch' 2>/dev/null; then
	rm -rf "$cache/torch"
	"$python" -m venv --system-site-packages "$cache/torch"
	"$cache/torch/bin/python" -m pip install --quiet msgspec numpy ||
		skip "msgspec cannot be installed; is the Python package index reachable?"
fi
if [ ! -d "$cache/sglang-$release" ]; then
	"$cache/torch/bin/python" -m pip download --quiet --no-deps --only-binary :all: -d "$cache/wheels" "sglang==$release" ||
		skip "sglang $release cannot be downloaded"
	"$cache/torch/bin/python" - "$cache" "$release" <<'UNPACK'
import glob, os, sys, zipfile
cache, release = sys.argv[1:]
with zipfile.ZipFile(glob.glob(f"{cache}/wheels/sglang-{release}-*.whl")[0]) as wheel:
    wheel.extractall(f"{cache}/new", [n for n in wheel.namelist() if n.startswith("sglang/srt/") and n.endswith(".py")])
os.rename(f"{cache}/new", f"{cache}/sglang-{release}")
UNPACK
fi
said=$(mktemp)
trap 'rm -f "$said"' EXIT
for seed in ${SEEDS:-1 2 3}; do
	"$cache/torch/bin/python" core/groups/testdata/sglang_caches.py "$cache/sglang-$release" "$seed" "${HISTORIES:-400}" "${STEPS:-40}" >"$said"
	KVATLAS_SGLANG=$said "${GO:-go}" test -count=1 -v -run CachesOfSGLang ./core/groups
done
