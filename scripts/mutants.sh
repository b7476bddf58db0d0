#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries all mutants of the templates on all cores, and prints those that no case notices. Needs the target
# normjit_host_tests, and about 2 hours of processor time: 8 minutes on 16 cores.
#
#     scripts/mutants.sh [build]
#
# Exit status: 0 each mutant is noticed, explained or does not compile, 1 one is not.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
scratch=$(mktemp -d) && trap 'rm -rf "$scratch"' EXIT
export NORMJIT_TEST_CACHE=off

# A process for each file and each of the shards of the test.
# shellcheck disable=SC2317  # xargs calls it
try_part() {
  local program=$1/normjit_host_tests log=$2/${3//\//_}.$4
  NORMJIT_MUTANTS=$3 "$program" --gtest_filter="Shards/Mutation.EveryMistakeIsNoticed/$4" >"$log" 2>&1 && return
  echo "== $3, shard $4 ended with $?"
  cat "$log"
  return 1
}
export -f try_part

status=0
cd "$root/templates"
printf '%s\n' *.cuh */*.cu* | while read -r file; do printf "$file %s\n" {0..7}; done |
  xargs -n 2 -P "$(nproc)" bash -c 'try_part "$@"' try_part "$build" "$scratch" || status=1
cat "$scratch"/* | awk '/^mutation check: / { planted += $4; of += $6; caught += $9; broken += $11; explained += $14 }
  END { printf "planted %d of %d caught; automatic %d caught, %d not compiling, %d survive and are explained\n",
               planted, of, caught, broken, explained }'
exit "$status"
