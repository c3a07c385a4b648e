#!/bin/sh
# Compares what SGLang's events tell with what the prefix cache of a release reuses: see `make test-groups`.
# Settings, all optional: SGLANG, the release; SEEDS, HISTORIES and STEPS, how much is compared;
# KVATLAS_GROUPS_CACHE, where the release (40 MB) and the Python environment are kept; GO.
set -eu
cd "$(dirname "$0")/../../.."
target="test-groups, SGLang"
. internal/testing/python.sh

release=${SGLANG:-0.5.23}
cache=${KVATLAS_GROUPS_CACHE:-.cache/groups}
base=torch pyenv "$cache/torch" msgspec,torch msgspec numpy
unpack sglang "$release" "$cache/sglang-$release"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
for seed in ${SEEDS:-1 2 3}; do
	"$python" core/groups/testdata/sglang_caches.py "$cache/sglang-$release" "$seed" "${HISTORIES:-400}" "${STEPS:-40}" >"$said"
	KVATLAS_SGLANG=$said "${GO:-go}" test -count=1 -v -run CachesOfSGLang ./core/groups
done
