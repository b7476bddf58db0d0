#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-builds for 64-bit ARM with Debian's g++-aarch64-linux-gnu, in build-aarch64/, and tries what was built with qemu-aarch64:
# the tool; the wheel, with Python of aarch64; the unit tests; and those that run kernels on the CPU.
#
#   scripts/aarch64.sh [--no-tests]
#
# The wheel lies in dist/ then. Its name has the glibc that its symbols need, as auditwheel found it. --no-tests makes and
# tries no more than the tool and the wheel.
#
# What the build needs of aarch64, with NVRTC, lies in .deps/, where mmdebstrap and pip unpack it; nothing of it is installed.
# Exit code 3: something is missing that only you can install.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/setup.sh
. "$here/setup.sh"
sysroot=$root/.deps/aarch64 python=$root/.deps/aarch64-python folder=$root/build-aarch64 tests=yes
for argument in "$@"; do
  case $argument in
    --no-tests) tests=no ;;
    -h | --help) help "$here/aarch64.sh"; exit ;;
    *) echo "aarch64.sh takes no argument but --no-tests and --help." >&2; exit 2 ;;
  esac
done

# Unpacks the libraries, and Python to try the wheel with. A folder of the final name is complete.
fetch_libraries() {
  local packages=(libbenchmark-dev libc6-dev libcli11-dev libcurl4-openssl-dev libgmock-dev libgtest-dev libhiredis-dev libsodium23
    libspdlog-dev libstdc++-12-dev libxxhash-dev nlohmann-json3-dev python3) IFS=,
  rm -rf "$sysroot.part"
  mkdir -p "${sysroot%/*}"
  quietly mmdebstrap --variant=extract --arch=arm64 "--include=${packages[*]}" bookworm "$sysroot.part"
  mv "$sysroot.part" "$sysroot"
}

# Runs a command where the kernel hands programs of aarch64 to qemu, also those that tests start: in name spaces of its own,
# so that it stays as it is for the rest of this machine. The magic is the field for the machine in the head of an ELF file.
emulated() {
  # shellcheck disable=SC2016
  unshare --user --map-root-user --mount sh -euc '
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    printf "%s" ":aarch64:M:18:\\xb7\\x00::$0:" > /proc/sys/fs/binfmt_misc/register
    exec "$@"' "$folder/emulator/qemu" "$@"
}

install_packages cross wheels
if [[ ! -d $sysroot ]]; then
  step "Fetching libraries of aarch64 into .deps/"
  fetch_libraries
fi
find_wheels "$python" || install_wheels "$python" 13 --target "$python/lib/python3-aarch64/site-packages" \
  --platform manylinux2014_aarch64 --only-binary :all: --no-deps
[[ -x $python/bin/auditwheel ]] || quietly "$python/bin/pip" install --disable-pip-version-check scikit-build-core auditwheel

step "Building in build-aarch64/"
unset CXX
cross=("-DCMAKE_TOOLCHAIN_FILE=$here/aarch64.cmake" "-DNORMJIT_SYSROOT=$sysroot" -DCMAKE_BUILD_TYPE=Release)
targets=(normjit_installable)
[[ $tests == no ]] || targets+=(normjit_unit_tests normjit_host_tests normjit_hot_path_benchmark)
configure "$folder" "${cross[@]}"
cmake --build "$folder" --parallel "$(nproc)" --target "${targets[@]}"
for binary in "$folder"/{libnormjit.so,normjit,normjit-compile,libnormjit-remote-redis.so,libnormjit-remote-http.so}; do
  readelf -h "$binary" | grep -q AArch64 || { echo "$binary is not of aarch64" >&2; exit 1; }
done

step "Trying the tool with qemu"
mkdir -p "$folder/emulator"
printf '#!/bin/sh\nexec %s -L "%s" "$@"\n' "$(command -v qemu-aarch64-static)" "$sysroot" > "$folder/emulator/qemu"
chmod +x "$folder/emulator/qemu"
ln -sf "$(command -v aarch64-linux-gnu-g++)" "$folder/emulator/g++"  # for kernels on the CPU
NORMJIT_CACHE_DIR=$(mktemp -d)
trap 'rm -rf "$NORMJIT_CACHE_DIR"' EXIT
export NORMJIT_CACHE_DIR PATH=$folder/emulator:$PATH
emulated true || fail "The kernel does not let this user choose what runs programs of aarch64: that takes Linux 6.7 and user name spaces."
emulated "$folder/normjit" --version
emulated "$folder/normjit" render layernorm/cols=4096/bf16/wb --arch sm_90 | grep -c __global__
for spec in layernorm/cols=64/f32/wb/gelu layernorm/cols=4096/bf16/wb rmsnorm/cols=1023/f16/add/sum/w; do
  emulated "$folder/normjit" run "$spec" --rows 3 --check --device host
done

step "Making the wheel, in dist/"
wheel=$folder/wheel
rm -rf "$wheel/made" "$wheel/unpacked" "$root"/dist/normjit-*_aarch64.whl
configure "$wheel" "${cross[@]}"
cp -p "$folder/generic.njp" "$wheel"  # what is in it need not be compiled again
CUDA_HOME=${cuda_include%/include} _PYTHON_HOST_PLATFORM=linux-aarch64 quietly "$python/bin/pip" wheel \
  --disable-pip-version-check --no-deps --no-build-isolation "--config-settings=build-dir=$wheel" --wheel-dir "$wheel/made" "$root"
quietly "$python/bin/auditwheel" repair --patcher none --ldpaths "$sysroot/usr/lib/aarch64-linux-gnu" --wheel-dir "$root/dist" \
  "$wheel"/made/*.whl
made=("$root"/dist/normjit-*_aarch64.whl)
echo "${made[*]}"
quietly "$python/bin/python" -m zipfile -e "${made[0]}" "$wheel/unpacked"
chmod +x "$wheel/unpacked/normjit/lib/normjit-compile"
NORMJIT_NVRTC_PATH=$nvrtc_library PYTHONPATH=$wheel/unpacked:$root/tests/python emulated "$sysroot/usr/bin/python3" -Bc \
  "import wheel_test; exec(wheel_test.PROGRAM.format(site='$wheel/unpacked'))"

[[ $tests == yes ]] || exit 0
step "Running the unit tests and the tests of kernels on the CPU with qemu"
# With qemu itself within a limit of memory no program starts, posix_spawn() does not say why one does not, and 32 threads take
# longer to start than a pause of 600 ms. A child that forks off a process with threads does not end there, and the test of
# every fault takes more than a quarter of an hour. What cases notice of a mutant is the same on each processor, and the time
# that they have for it is too short with qemu.
not_with_qemu='Tool\.TooLittleMemoryIsSaid|ProcessCompilerTest\.WhatCannotBeStartedIsNotTriedAgain'
not_with_qemu+='|BreakerTest\.AfterThePauseOneProcessAsks|HelpedPrebuild\.EveryForkedChildHasItsOwn'
not_with_qemu+='|ServiceFork\.EveryChildPreparesAndPrebuilds|ServiceFaults\.CostNothingButTime|Mutation'
# Verdicts that are kept are those of x86-64.
NORMJIT_TEST_CACHE=off NORMJIT_TEST_PART=${NORMJIT_TEST_PART:-8} emulated \
  ctest --test-dir "$folder" --label-regex '^(unit|host)$' --exclude-regex "$not_with_qemu" --no-tests=error \
  --output-on-failure --progress --parallel "$(nproc)"
