#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds everything and runs the tests.
#
#   scripts/test.sh [--no-sanitizers] [--all] [LABEL...]
#
# The labels, all of them unless some are named:
#   unit    neither NVRTC nor a GPU; run a second time under the address and undefined-behaviour sanitizers
#   nvrtc   compiles kernels
#   host    runs kernels on the CPU, compiled with g++ or clang++; random ones also under the thread and address sanitizers
#   gpu     runs kernels; each test skips where there is no GPU
#   odr     runs nothing: links library and tool with GCC's -flto -Wodr, which finds two types of one name
#   fuzz    tries changed inputs on each parser of outside input, with clang's libFuzzer and the same sanitizers: for
#           NORMJIT_FUZZ_SECONDS each; else 120 if this label is named, and 10 if all are
# and those that are run only if they are named:
#   fleet   plug-ins of remote stores, recipes and images, with servers that the tests start: redis-server, nginx,
#           docker-registry, buildah and skopeo, which are installed if they are missing, and for S3 moto_server and aws
#           (pip install 'moto[server]' awscli), without which its tests skip
#   browser looks at the pages of scripts/report.py in a headless Chromium; skips without it, plotly and playwright
#           (Debian: chromium; pip install plotly playwright)
#   debian, release, reproducible, conan, aarch64
#           the packages ("Packages" in CONTRIBUTING.md), of what is committed; what is missing is installed
#
# The build for the sanitizers, in build-asan/, is one of clang, unless CXX is another compiler or clang cannot be
# installed: then fuzz is skipped. --no-sanitizers leaves that build out. --all tries every kernel and every mutant, also those
# that an earlier run has found good ("Verdicts that are kept" in CONTRIBUTING.md). The tests use a kernel cache of
# their own. Builds stay in build/, build-asan/ and build-odr/. Exit code: 0 when every test that ran passed; 2 for a
# wrong argument; 3 when something is missing that only you can install.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/setup.sh
. "$here/setup.sh"

labels=()
sanitizers=yes
for argument in "$@"; do
  case $argument in
    unit | nvrtc | host | gpu | odr | fuzz | fleet | browser | debian | release | reproducible | conan | aarch64) labels+=("$argument") ;;
    --no-sanitizers) sanitizers=no ;;
    --all) export NORMJIT_TEST_CACHE=off ;;
    -h | --help) help "$here/test.sh"; exit ;;
    *) echo "Unknown argument $argument: test.sh takes --no-sanitizers, --all, and out of unit, nvrtc, host, gpu, odr, fuzz," \
         "fleet, browser, debian, release, reproducible, conan and aarch64." >&2; exit 2 ;;
  esac
done
# All tests together begin with the same changes each time, so that they fail for what is new in the code.
fuzz_seconds=120 fuzz_seed=0
(( ${#labels[@]} > 0 )) || { labels=(odr unit nvrtc host gpu fuzz); fuzz_seconds=10 fuzz_seed=1; }
export NORMJIT_FUZZ_SECONDS=${NORMJIT_FUZZ_SECONDS:-$fuzz_seconds} NORMJIT_FUZZ_SEED=${NORMJIT_FUZZ_SEED:-$fuzz_seed}
odr=no fuzz=no
tests=()     # the labels of ctest in build/
releases=()  # those of scripts
for label in "${labels[@]}"; do
  case $label in
    odr) odr=yes ;;
    fuzz) fuzz=$sanitizers ;;
    debian | release | reproducible | conan | aarch64) releases+=("$label") ;;
    *) tests+=("$label") ;;
  esac
done
[[ " ${tests[*]} " == *' unit '* ]] || sanitizers=no

# build FOLDER TARGET [CMAKE OPTION]...
build() {
  local folder=$1 target=$2
  shift 2
  configure "$folder" -DNORMJIT_BUILD_TOOL=ON -DNORMJIT_BUILD_TESTS=ON "$@"
  # shellcheck disable=SC2086  # one target or several
  cmake --build "$folder" --parallel "$(nproc)" --target $target
}

# count LOG: the sum of what the tests that keep verdicts report, "3322 kernels: 3163 known, 159 compiled", and of the
# inputs that were fuzzed.
count() {
  awk '$2 ~ /^(kernels|mutants|cases):$/ && $4 == "known," { all[$2] += $1; known[$2] += $3; new[$2] += $5; how[$2] = $6; sub(",", "", how[$2]) }
       $1 == "stat::number_of_executed_units:" { inputs += $2; parsers++ }
       END { for (what in all) print all[what], what, known[what], "known,", new[what], how[what]
             if (parsers) print inputs, "inputs tried on", parsers, "parsers" }' "$1"
}

# run_tests FOLDER LABEL...
run_tests() {
  local folder=$1 log=$1/Testing/Temporary/LastTest.log pattern status=0
  shift
  pattern=$(IFS='|'; echo "$*")
  rm -f "$log"
  NORMJIT_CACHE_DIR=$cache ctest --test-dir "$folder" --label-regex "^($pattern)\$" --no-tests=error \
    --output-on-failure --progress --parallel "$(nproc)" || status=$?
  [[ ! -f $log ]] || count "$log"
  return "$status"
}

packages=(tool tests)
[[ " ${tests[*]} " != *' fleet '* ]] || packages+=(fleet)
[[ " ${releases[*]} " != *' release '* ]] || packages+=(release)

step "Setting up this machine"
set_up "${packages[@]}"
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

# A minute on two cores, since nothing is optimised: only the linker's comparison of types counts. With -r the link ends
# there and makes no code: 5 s of processor time, not 27 s.
if [[ $odr == yes ]]; then
  step "Looking for two types of one name, in build-odr/"
  if "${CXX:-c++}" --version | grep -q clang; then
    echo "Skipped: only GCC finds them."
  else
    build "$root/build-odr" "normjit_tool normjit_bench" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 \
      "-DCMAKE_CXX_FLAGS=-flto=auto -fno-fat-lto-objects -Wodr -Werror=odr" \
      "-DCMAKE_EXE_LINKER_FLAGS=-r -flinker-output=rel" \
      -DNORMJIT_BUILD_TESTS=OFF -DNORMJIT_INSTALL=OFF -DNORMJIT_EMBED_GENERIC=OFF
  fi
fi
if (( ${#tests[@]} > 0 )); then
  step "Building in build/"
  build "$root/build" all
fi

# The sanitizers go first, so that the last lines are the count of all tests. Little is optimised: clang then takes 4.8 s
# of processor time for cache_test.cc, with -O1 9.8 s, and g++ without either -O1 or libFuzzer 7.3 s.
sanitized=() targets=()
if [[ $sanitizers == yes || $fuzz == yes ]]; then find_fuzzer; fi
if [[ $sanitizers == yes ]]; then sanitized+=(unit) targets+=(normjit_unit_tests); fi
if [[ $fuzz == yes && -n $fuzzer ]]; then
  sanitized+=(fuzz) targets+=(normjit_fuzz)
elif [[ $fuzz == yes ]]; then
  step "Skipped: fuzz needs clang with libFuzzer (Debian: clang, libclang-rt-dev)${CXX:+, and CXX is $CXX}"
fi
if (( ${#sanitized[@]} > 0 )); then
  instrumenter=${fuzzer:-${CXX:-c++}}
  step "Building in build-asan/ for the sanitizers, with $instrumenter"
  CXX=$instrumenter build "$root/build-asan" "${targets[*]}" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-g1 \
    "-DNORMJIT_SANITIZE=address,undefined${fuzzer:+,fuzzer-no-link}"
  step "Running the tests under the address and undefined-behaviour sanitizers: ${sanitized[*]}"
  UBSAN_OPTIONS=print_stacktrace=1 run_tests "$root/build-asan" "${sanitized[@]}"
fi

if (( ${#tests[@]} > 0 )); then
  step "Running the tests: ${tests[*]}"
  run_tests "$root/build" "${tests[@]}"
fi

[[ " ${releases[*]} " != *' reproducible '* && " ${releases[*]} " != *' conan '* ]] || gather_cuda "$cache/cuda"
for label in "${releases[@]}"; do
  step "Making packages: $label"
  case $label in
    debian) "$here/package.sh" debian "$cache/debian" ;;
    release) build "$root/build" normjit_tool && "$root/tests/package/release_test.sh" "$root/build/normjit" ;;
    reproducible) CUDA_HOME=$cache/cuda "$root/tests/package/reproducible_test.sh" ;;
    aarch64) "$here/aarch64.sh" ;;
    conan) CUDA_HOME=$cache/cuda "$root/tests/package/conan_test.sh" ;;
  esac
done
