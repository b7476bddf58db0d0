# SPDX-License-Identifier: Apache-2.0
# Debian packages: what is missing, and installing it. Sourced by setup.sh.
# shellcheck shell=bash

preprocesses() {
  local compiler
  read -ra compiler <<<"${CXX:-c++}"
  "${compiler[@]}" -std=c++20 -x c++ -E - >/dev/null 2>&1 <<<"$1"
}
have_compiler() {
  preprocesses '#if defined(__clang__) ? __clang_major__ < 14 : __GNUC__ < 11
#error too old
#endif'
}
have_cmake() {
  local version
  version=$(cmake --version 2>/dev/null) && [[ $version =~ ([0-9]+)\.([0-9]+) ]] &&
    (( BASH_REMATCH[1] > 3 || (BASH_REMATCH[1] == 3 && BASH_REMATCH[2] >= 22) ))
}
have_make() { command -v ninja || command -v make; } >/dev/null
have_venv() { python3 -c 'import ensurepip, venv'; } >/dev/null 2>&1
have_program() { PATH=$PATH:/usr/sbin command -v "$1" >/dev/null; }
have_package() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed* ]]; }
# A header counts wherever it comes from; the package is asked as well for a machine that has no compiler yet.
have_library() { have_package "$1" || preprocesses "#include <$2>"; }

# A library that is opened at run time, by the name that the loader knows.
have_soname() { [[ $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) == *[[:space:]]"$1 "* ]]; }

# Prints the packages that are missing, one a line. Arguments: which sets are wanted, out of tool, tests, fleet, wheels, release,
# chroot, debian, cross.
missing_packages() {
  local set
  for set in "$@"; do
    case $set in
      tool)
        have_cmake || echo cmake
        have_compiler || echo g++
        have_make || echo ninja-build
        have_library libspdlog-dev spdlog/spdlog.h || echo libspdlog-dev
        have_library libcli11-dev CLI/CLI.hpp || echo libcli11-dev
        have_library nlohmann-json3-dev nlohmann/json.hpp || echo nlohmann-json3-dev
        have_library libxxhash-dev xxhash.h || echo libxxhash-dev
        ;;
      tests)
        have_library libgtest-dev gtest/gtest.h || echo libgtest-dev
        have_library libgmock-dev gmock/gmock.h || echo libgmock-dev
        have_library libbenchmark-dev benchmark/benchmark.h || echo libbenchmark-dev
        have_soname libsodium.so.23 || have_soname libsodium.so.26 || echo libsodium23
        ;;
      fleet)  # servers to test against, and the libraries of their clients
        have_program redis-server || echo redis-server
        have_program nginx || echo nginx-light
        have_program minisign || echo minisign
        have_program docker-registry || echo docker-registry
        have_program buildah || echo buildah
        have_program skopeo || echo skopeo
        have_library libhiredis-dev hiredis/hiredis.h || echo libhiredis-dev
        have_library libcurl4-openssl-dev curl/curl.h || echo libcurl4-openssl-dev
        have_library libsodium-dev sodium.h || echo libsodium-dev
        ;;
      release) have_program minisign || echo minisign ;;
      chroot) have_program mmdebstrap || echo mmdebstrap ;;
      debian)  # to build the packages without a chroot
        have_program dh || echo debhelper
        have_program lintian || echo lintian
        have_program ninja || echo ninja-build
        have_program pkg-config || echo pkgconf
        have_library libhiredis-dev hiredis/hiredis.h || echo libhiredis-dev
        have_library libcurl4-openssl-dev curl/curl.h || echo libcurl4-openssl-dev
        ;;
      cross)  # for aarch64
        have_cmake || echo cmake
        have_program ninja || echo ninja-build
        have_program aarch64-linux-gnu-g++ || echo g++-aarch64-linux-gnu
        have_program qemu-aarch64-static || echo qemu-user-static
        have_program mmdebstrap || echo mmdebstrap
        ;;
      wheels)
        have_venv || printf '%s\n' python3 python3-venv
        ;;
    esac
  done
}

# Runs apt-get as root, after any other installation has ended; fails if this user may not become root.
as_root() {
  if (( EUID == 0 )); then "$@"; else sudo -n "$@"; fi
}
apt() {
  quietly as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@"
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  (( ${#missing[@]} > 0 )) || return 0
  command -v apt-get >/dev/null ||
    fail "normjit needs these packages, by their Debian names: ${missing[*]}" \
      "Install them with this system's package manager and run this again."
  as_root true 2>/dev/null ||
    fail "These packages are missing, and installing them needs root. Run this command, then this script again:" \
      "  sudo apt-get update && sudo apt-get install -y ${missing[*]}"
  step "Installing ${missing[*]}"
  local strict=(-o APT::Update::Error-Mode=any)  # else a list that could not be fetched is only a warning
  apt update "${strict[@]}" || apt update "${strict[@]}" ||
    echo "apt-get update failed; trying with the package lists as they are" >&2
  apt install -y --no-install-recommends "${missing[@]}" || fail "apt-get could not install ${missing[*]}; see above."
  mapfile -t missing < <(missing_packages "$@")
  (( ${#missing[@]} == 0 )) ||
    fail "Installed, but still not usable: ${missing[*]}." \
      "normjit needs CMake 3.22 and g++ 11 or clang 14, or newer; the variable CXX chooses the compiler${CXX:+ (now $CXX)}."
}

# Whether this compiler is a clang of at least version 14 with its sanitizers and libFuzzer.
is_fuzzer() {
  local compiler program status=0
  read -ra compiler <<<"$1"
  program=$(mktemp)
  "${compiler[@]}" -std=c++20 -fsanitize=address,undefined,fuzzer -x c++ - -o "$program" >/dev/null 2>&1 <<'END' || status=1
#if __clang_major__ < 14
#error too old
#endif
#include <string>
extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long size) { return std::string(size, 'x')[0] == 'y'; }
END
  rm -f "$program"
  return "$status"
}

# llvm has llvm-symbolizer, without which stack traces name no lines. The clang of Ubuntu 22.04 brings its runtime along.
install_clang() {
  local packages=(clang llvm)
  if ! command -v apt-get >/dev/null || ! as_root true 2>/dev/null; then return; fi
  step "Installing clang"
  apt update || echo "apt-get update failed; trying with the package lists as they are" >&2
  if apt-cache show libclang-rt-dev >/dev/null 2>&1; then packages+=(libclang-rt-dev); fi
  apt install -y --no-install-recommends "${packages[@]}" || echo "apt-get could not install ${packages[*]}; see above." >&2
}

# Sets `fuzzer` to the compiler that fuzzes: CXX, else clang++, which is installed if it can be. Empty if there is none.
find_fuzzer() {
  fuzzer=${CXX:-clang++}
  if ! is_fuzzer "$fuzzer" && [[ -z ${CXX:-} ]]; then install_clang; fi
  is_fuzzer "$fuzzer" || fuzzer=''
}
