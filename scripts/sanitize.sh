#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs kernels of every schedule that the planner chooses, the generic kernel, the graph tests and the
# tests of the C interface under compute-sanitizer. Needs a GPU, compute-sanitizer of the CUDA toolkit,
# and the targets normjit_tool and normjit_gpu_tests.
#
#     scripts/sanitize.sh [build [tool...]]
#
# NORMJIT_SANITIZE_JOBS programs run at a time (default: a quarter of the processors, at least 1).
#
# racecheck does not see that a warp has met (__syncwarp, which costs no instruction) before one of its
# lanes arrives at a barrier for all of them. It reports the other lanes' reads of persistent_row's ring
# as a race with the next copy to it. So for racecheck, and only for it, every lane arrives for itself:
# scripts/every_lane_arrives.patch, in a copy of the templates. The emulation on the CPU
# (`normjit run --device host`) models warps, and checks the unchanged templates.
#
# Exit status: 0 no finding, 1 a finding, 3 no compute-sanitizer.
set -u
scripts=$(cd "$(dirname "$0")" && pwd)
build=${1:-build}
tools=("${@:2}")
jobs=${NORMJIT_SANITIZE_JOBS:-$((($(nproc) + 3) / 4))}
[ ${#tools[@]} -gt 0 ] || tools=(memcheck synccheck racecheck)
command -v compute-sanitizer >/dev/null ||
  { echo "compute-sanitizer was not found; it comes with the CUDA toolkit" >&2; exit 3; }

scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
cp -r "$scripts/../templates" "$scratch/templates"
patch --quiet -d "$scratch/templates/schedule" <"$scripts/every_lane_arrives.patch" || exit 1
export NORMJIT_CACHE_DIR=$scratch/cache

# "SPEC ROWS [OPTION...]" of `normjit run`.
layers=( # warp_rows, staged_rows, block_row alone and in clusters, persistent_row alone and in a grid,
  # with whole vectors and without, split_row; and rows with a residual, by each of these
  "layernorm/cols=64/f32/wb/gelu 4000" "layernorm/cols=333/bf16/wb 4000"
  "layernorm/cols=4096/bf16/wb 600" "layernorm/cols=16384/f16/wb 1"
  "layernorm/cols=32768/f32/wb 300" "layernorm/cols=32768/bf16/wb 600"
  "layernorm/cols=65536/f32/wb 800" "layernorm/cols=50257/bf16/wb 100"
  "layernorm/cols=100003/f32/wb 40" "layernorm/cols=4194304/f32/wb 3" "layernorm/cols=16777216/f32/wb 1"
  "rmsnorm/cols=128/bf16/add/sum/w 4000" "rmsnorm/cols=4096/bf16/add/sum/w 600"
  "layernorm/cols=16384/f16/add/sum/wb 1" "rmsnorm/cols=39/bf16/add/sum/w 4000"
  "rmsnorm/cols=768/f16/inb/add/sum/w1 600" "rmsnorm/cols=5376/bf16/addafter/w1 600"
  "rmsnorm/cols=128/bf16/wb:rows 4000" "layernorm/cols=65536/f32/add/sum/wb 300"
  "layernorm/cols=4194304/f32/add/sum/wb 3" "layernorm/cols=100003/f32/add/wb 40"
  "rmsnorm/cols=5120/bf16/add/sum/w 300" "layernorm/cols=1152/bf16/mod 600"
  "layernorm/cols=3072/bf16/gate/add/sum/mod 300" "rmsnorm/cols=128/bf16/w/gateafter:silu 2000"
  "layernorm/cols=65536/f32/mod 100"
  # results of 8 bits: a scale of the tensor, of rows and of blocks, a second result and amax, by each
  # schedule that has them; block_row alone, in clusters and all over the grid
  "rmsnorm/cols=128/bf16/out=e4m3/w/q=32:e8m0:sw 4001" "layernorm/cols=256/f16/out=e5m2/wb/q=16:e4m3:cols 4001"
  "rmsnorm/cols=128/bf16/out=e4m3/w/q=tensor/also=bf16/amax 4000" "rmsnorm/cols=256/bf16/w/amax 4000"
  "rmsnorm/cols=333/bf16/out=e4m3/w/q=row 4000" "layernorm/cols=39/bf16/out=s8/wb/q=tensor 4000"
  "rmsnorm/cols=4096/bf16/out=e4m3/add/sum/w/q=row:ub 600" "rmsnorm/cols=4096/bf16/out=e4m3/w/q=128:cols 601"
  "rmsnorm/cols=7168/bf16/out=e4m3/add/sum/round=norm+y/w/q=128:e8m0:cols4 301"
  "rmsnorm/cols=4096/bf16/out=e4m3/w/q=tensor:inv/also=f32/amax 600"
  "rmsnorm/cols=4096/bf16/out=e2m1/add/sum/w/q=16:e4m3:sw/also=bf16 301" "rmsnorm/cols=256/f32/out=e2m1/w/q=32:e8m0 4001"
  "rmsnorm/cols=16384/bf16/out=s8/w/q=row/also=f16 1" "rmsnorm/cols=16384/bf16/out=e4m3/w/q=128:p2 1"
  "rmsnorm/cols=16384/bf16/out=e4m3/w/q=tensor/amax 1" "layernorm/cols=262144/f32/out=e4m3/wb/q=128:cols 4"
  "layernorm/cols=1048576/f32/out=s8/wb/q=row 2" "layernorm/cols=1048576/f32/out=s8/wb/q=tensor/amax 2"
  "layernorm/cols=4194304/f32/out=e4m3/wb/q=tensor 3" "layernorm/cols=16777216/f32/out=e4m3/wb/q=tensor 1"
  "layernorm/cols=96/f32/out=e4m3/wb/q=tensor/cf 3136 --plane 784"
  # gradients: by rows in a warp and in blocks, in a ring, in clusters, and by columns; with given statistics
  "layernorm_bwd/cols=64/f32/wb/gelu 4000" "layernorm_bwd/cols=4096/bf16/dsum/wb 600" "rmsnorm_bwd/cols=5120/bf16/dsum/w 300"
  "rmsnorm_bwd/cols=32768/bf16/w 100" "layernorm_bwd/cols=300001/f32/wb/gelu 7" "layernorm_bwd/cols=1152/bf16/mod 600"
  "rmsnorm_bwd/cols=8192/bf16/gate:silu/w 100" "layernorm_bwd/cols=4096/bf16/wb/stats/need=dw+db 600")
generic=(
  "rmsnorm/cols=768/bf16/w 40" "rmsnorm/cols=4096/bf16/out=e4m3/add/sum/w/q=row:ub 40"
  "rmsnorm/cols=4096/bf16/out=e4m3/w/q=128:e8m0:sw/also=bf16 41" "layernorm/cols=768/f32/out=s8/wb/q=64:cols 41"
  "rmsnorm/cols=768/bf16/out=e5m2/w/q=tensor/amax 40" "layernorm_bwd/cols=768/bf16/dsum/wb 40"
  "rmsnorm_bwd/cols=4096/bf16/gate:silu/w 9" "layernorm_bwd/cols=300/f32/wb/mod/silu 64")
generic_plan="generic threads=256 threads_per_row=32 vector=1 per_thread=32 group_rows=1 blocks_per_sm=2"

# sanitize TOOL PROGRAM ARGUMENT...: in the background, once fewer than $jobs others run.
sanitize() {
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  {
    if log=$(compute-sanitizer --report-api-errors no --error-exitcode 1 --tool "$@" 2>&1); then
      printf '%s\n' "ok      $1: ${*:3}"
    else
      touch "$scratch/failed"
      printf '%s\n' "$(tail -n 60 <<<"$log")" "FAILED  $1: ${*:3}"
    fi
  } &
}

for tool in "${tools[@]}"; do
  [ "$tool" != racecheck ] || export NORMJIT_TEMPLATE_DIR=$scratch/templates
  for layer in "${layers[@]}"; do
    read -r spec rows options <<<"$layer"
    sanitize $tool "$build/normjit" run "$spec" --rows "$rows" --check $options
  done
  for layer in "${generic[@]}"; do
    read -r spec rows <<<"$layer"
    sanitize $tool "$build/normjit" run "$spec" --rows "$rows" --check --plan "$generic_plan"
  done
  sanitize $tool "$build/normjit_gpu_tests" \
    --gtest_filter='CApiGpuTest.*:GraphsGpuTest.APreparedKernelIsOneKernelNodeInEveryMode'
done
wait
[ ! -e "$scratch/failed" ]
