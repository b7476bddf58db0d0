#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a recorded run to a deployment that compiles nothing: record, prebuild, check, ship, run.
#
#   examples/zero_jit.sh [build/normjit]
#
# The first and the last step need a GPU; the ones between do not, so they belong in a container build. Without a
# GPU a recorded log is made up.
set -eu
normjit=${1:-build/normjit}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export NORMJIT_CACHE_DIR="$work/cache"
arch=$("$normjit" doctor --json | sed -n 's/.*"arch": *"\(sm_[0-9a-z]*\)".*/\1/p' | head -n 1)

echo "1. Record: every spec that is compiled leaves a line."
if [ -n "$arch" ]; then
  NORMJIT_MISS_LOG="$work/misses.jsonl" "$normjit" run layernorm/cols=4096/bf16/wb --rows 128 --repeat 0 > /dev/null
  NORMJIT_MISS_LOG="$work/misses.jsonl" "$normjit" run layernorm/cols=64/f32/wb/gelu --rows 5000 --repeat 0 > /dev/null
else
  echo "   (no GPU here: two lines by hand, for sm_90)"
  printf '%s\n' '"layernorm/cols=4096/bf16/wb"' '"layernorm/cols=64/f32/wb/gelu"' > "$work/misses.jsonl"
fi
cat "$work/misses.jsonl"

echo "2. Prebuild: needs no GPU. The log is the manifest."
"$normjit" prebuild --manifest "$work/misses.jsonl" --arch "${arch:-sm_90}"

echo "3. The gate of the build: exit 1 if a kernel is missing."
"$normjit" prebuild --manifest "$work/misses.jsonl" --arch "${arch:-sm_90}" --check > "$work/report"
tail -n 1 "$work/report"

echo "4. One file to ship."
"$normjit" export "$work/kernels.njp" --manifest "$work/misses.jsonl" --arch "${arch:-sm_90}"

echo "5. Run: from that file only, without a cache directory to write to and without NVRTC."
export NORMJIT_CACHE_DIR=/dev/null/none NORMJIT_LAYERS="$work/kernels.njp" NORMJIT_MODE=cached-only
export NORMJIT_NVRTC_PATH=/dev/null/none
"$normjit" prebuild --manifest "$work/misses.jsonl" --arch "${arch:-sm_90}" --check > "$work/report"
tail -n 1 "$work/report"
if [ -n "$arch" ]; then
  "$normjit" run layernorm/cols=4096/bf16/wb --rows 128 --check
  if "$normjit" run layernorm/cols=4097/bf16/wb --rows 128; then exit 1; fi
  echo "   (that one was never recorded)"
fi
