#!/bin/sh
# Compares core/groups with the prefix cache of a vLLM release: see `make test-groups`.
# Settings, all optional: RELEASE; SEEDS, LAYOUTS and STEPS, how much is compared;
# KVATLAS_GROUPS_CACHE, where the release (340 MB) and the Python environment are kept; GO.
set -eu
cd "$(dirname "$0")/../../.."
target=test-groups
. internal/testing/python.sh

release=${RELEASE:-0.33.0}
cache=${KVATLAS_GROUPS_CACHE:-.cache/groups}
pyenv "$cache/venv" msgspec msgspec
unpack vllm "$release" "$cache/vllm-$release"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
for seed in ${SEEDS:-1 2 3}; do
	"$python" core/groups/testdata/vllm_groups.py "$cache/vllm-$release" "$seed" "${LAYOUTS:-300}" "${STEPS:-40}" payloads >"$said"
	KVATLAS_GROUPS=$said "${GO:-go}" test -count=1 -v -run "AgreesWithVLLM|StreamsOfVLLM" ./core/groups
done
