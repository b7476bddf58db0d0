#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-builds for 64-bit ARM with Debian's g++-aarch64-linux-gnu, and runs the tests with qemu-aarch64.
#
#   scripts/aarch64.sh [build | test]
#
# build   the library, the tool, and the plug-ins, in build-aarch64/
# test    also the unit tests, and the host tests that a filter chooses; runs them
#
# The libraries that the build needs lie in .deps/aarch64, unpacked by mmdebstrap without being installed. The tests run
# programs, which the kernel starts by its binfmt_misc: in a namespace of their own, so nothing of this machine is changed
# (Linux 6.7 or newer, or root may mount it before). Exit code 3: something is missing that only you can install.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/setup.sh
. "$here/setup.sh"
sysroot=$root/.deps/aarch64 folder=$root/build-aarch64
what=${1:-test}
case $what in
  build) targets=(normjit_installable) ;;
  test) targets=(normjit_installable normjit_unit_tests normjit_host_tests) ;;
  -h | --help) help "$here/aarch64.sh"; exit ;;
  *) echo "aarch64.sh takes build or test, not $what." >&2; exit 2 ;;
esac

# What starts other programs of this build needs binfmt_misc; what measures time, or needs NVRTC or Python, is left out.
readonly kUnitFilter='*'
readonly kHostFilter='*'

set_up cross
if [[ ! -d $sysroot/usr/lib/aarch64-linux-gnu ]]; then
  step "Fetching the libraries of aarch64 into .deps/"
  rm -rf "$sysroot"
  mkdir -p "$sysroot"
  quietly mmdebstrap --variant=extract --arch=arm64 \
    --include=libc6-dev,libstdc++-12-dev,libcli11-dev,libcurl4-openssl-dev,libgmock-dev,libgtest-dev,libhiredis-dev,libsodium23,libspdlog-dev,libxxhash-dev,nlohmann-json3-dev \
    bookworm "$sysroot"
fi

step "Building in build-aarch64/"
unset CXX
launcher=()
if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
quietly cmake -S "$root" -B "$folder" -G Ninja "-DCMAKE_TOOLCHAIN_FILE=$here/aarch64.cmake" "-DNORMJIT_SYSROOT=$sysroot" \
  "-DNORMJIT_CUDA_INCLUDE=$cuda_include" "-DNORMJIT_NVRTC_INCLUDE=$nvrtc_include" \
  -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" -DNORMJIT_BUILD_TESTS=ON -DNORMJIT_EMBED_GENERIC=OFF \
  "${launcher[@]}"
cmake --build "$folder" --parallel "$(nproc)" --target "${targets[@]}"
for binary in "$folder"/{libnormjit.so,normjit,normjit-compile,libnormjit-remote-redis.so,libnormjit-remote-http.so}; do
  readelf -h "$binary" | grep -q AArch64 || { echo "$binary is not of aarch64" >&2; exit 1; }
done
[[ $what == test ]] || exit 0

# in_namespace COMMAND...: the kernel starts programs of aarch64 by qemu there.
in_namespace() {
  local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  local qemu rule
  qemu=$(command -v qemu-aarch64-static)
  rule=":normjit-aarch64:M::$magic:$mask:$qemu:F"
  # shellcheck disable=SC2016
  QEMU_LD_PREFIX=$sysroot NORMJIT_HOST_CXX=aarch64-linux-gnu-g++ unshare --user --map-root-user --mount bash -c '
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc && printf %s "$1" > /proc/sys/fs/binfmt_misc/register ||
      { echo "The kernel does not let this user have a binfmt_misc of its own." >&2; exit 3; }
    shift
    "$@"' in_namespace "$rule" "$@"
}
step "Running the unit tests"
in_namespace "$folder/normjit_unit_tests" --gtest_brief=1 "--gtest_filter=$kUnitFilter"
step "Running host tests"
in_namespace "$folder/normjit_host_tests" --gtest_brief=1 "--gtest_filter=$kHostFilter"
