#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to both reference workloads, run and checked: on the GPU, or where there is none on the CPU.
#
#   scripts/quickstart.sh [--help]
#
# 1. installs what is missing (packages with apt-get; the CUDA headers and NVRTC with pip where there is no toolkit)
# 2. builds the tool: build/normjit
# 3. shows what the tool finds on this machine
# 4. puts the kernels of cache/manifests/reference.json for sm_80, sm_90 and sm_100 into the kernel cache
# 5. lists the cache
# 6. runs both reference workloads and compares them with a float64 reference: on the GPU in full size, else the same
#    kernels on the CPU (normjit run --device host), on fewer rows
#
# The kernel cache is your own (~/.cache/normjit) unless NORMJIT_CACHE_DIR names another. Run it again at any time:
# it keeps what exists. Exit code: 0 on success, with or without a GPU; 3 when something is missing that only you can
# install; else that of the step that failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/setup.sh
. "$here/setup.sh"

build_tool() {
  local options=()
  # A build folder that has the tests keeps them.
  [[ -f $build/CMakeCache.txt ]] || options=(-DNORMJIT_BUILD_TESTS=OFF)
  configure "$build" "${options[@]}"
  cmake --build "$build" --parallel "$(nproc)" --target normjit_installable
}

# Exit code 3 means that there is no GPU; other faults show in the runs.
has_gpu() {
  local status=0
  "$normjit" prebuild --manifest "$manifest" --arch native --dry-run >/dev/null 2>&1 || status=$?
  (( status != 3 ))
}

# Shows a command as it would be typed in the clone, and runs it.
run() {
  printf '$ build/normjit %s\n' "$*"
  "$normjit" "$@"
}

case ${1-} in
  '') ;;
  -h | --help) help "$here/quickstart.sh"; exit ;;
  *) echo "quickstart.sh takes no argument but --help." >&2; exit 2 ;;
esac

cd "$root"
build=$root/build
normjit=$build/normjit
manifest=cache/manifests/reference.json

step "1/6 Setting up this machine"
set_up tool

step "2/6 Building the libraries and the tool in build/"
build_tool

step "3/6 What normjit finds here"
run doctor

step "4/6 Building the reference kernels for sm_80, sm_90 and sm_100 (no GPU needed)"
run prebuild --manifest "$manifest" --arch sm_80,sm_90,sm_100

step "5/6 The kernel cache"
run list

long_rows=layernorm/cols=4194304/f32/eps=1e-05/wb
short_rows=layernorm/cols=64/f32/eps=1e-05/wb/gelu
if has_gpu; then
  step "6/6 Running the reference workloads on the GPU and checking them"
  run run "$long_rows" --rows 16 --check
  run run "$short_rows" --rows 4194304 --check
  step "Done: both workloads ran on the GPU and agree with the float64 reference."
else
  step "6/6 No GPU that normjit can use (step 3 says what it found): running the reference workloads on the CPU"
  # The compiler that the build has used; the tool itself looks for the usual names only.
  if [[ -n ${CXX-} && $CXX != *' '* ]]; then export NORMJIT_HOST_CXX=${NORMJIT_HOST_CXX:-$CXX}; fi
  run run "$long_rows" --rows 1 --check --device host --schedule 0,1,2
  run run "$short_rows" --rows 65536 --check --device host --schedule 0,1,2
  step "Done: emulated on the CPU, both workloads agree with the float64 reference."
  echo "On an NVIDIA GPU (sm_75 or newer, driver 525 or newer) this script runs them in full size: 16 and 4194304 rows."
fi
