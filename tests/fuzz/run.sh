#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes one parser for NORMJIT_FUZZ_SECONDS: run.sh PROGRAM NAME
#
# It begins with corpus/NAME and with what former runs have added. That lies beside the kept verdicts (CONTRIBUTING.md),
# as does an input that fails: so it fails again in every run until the parser is mended.
set -euo pipefail

program=$1 name=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

cache=${XDG_CACHE_HOME:-${HOME:+$HOME/.cache}} temporary=
kept=${NORMJIT_TEST_CACHE:-${cache:+$cache/normjit-tests}}
if [[ ${kept:-off} == off ]]; then kept=$(mktemp -d) temporary=$kept; fi
grown=$kept/fuzz/$name
mkdir -p "$grown"
corpora=("$grown" "$here/corpus/$name")
[[ $name != compiled ]] || corpora+=("$here/../data/0.1/cache")  # which has cubins

# For each input. The largest entry of a cache has 64 MiB.
limits=(-timeout=25 -rss_limit_mb=2048 -malloc_limit_mb=80)
options=("-max_total_time=${NORMJIT_FUZZ_SECONDS:-10}" "-seed=${NORMJIT_FUZZ_SEED:-0}" -print_final_stats=1 "-artifact_prefix=$grown/")
[[ ! -f $here/$name.dict ]] || options+=("-dict=$here/$name.dict")
if ! "$program" "${limits[@]}" "${options[@]}" "${corpora[@]}"; then
  printf '\nTo see it again:\n'
  for input in "$grown"/{crash,leak,oom,timeout}-*; do
    [[ ! -f $input ]] || echo "  $program ${limits[*]} $input"
  done
  exit 1
fi
[[ -z $temporary ]] || rm -rf "$temporary"
