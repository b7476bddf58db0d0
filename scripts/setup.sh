#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a Debian or Ubuntu machine needs to build normjit: finds it, and installs what is missing.
#
#   scripts/setup.sh    only sets the machine up: the packages, the CUDA headers and NVRTC
#
# quickstart.sh and test.sh source this file for its functions. It needs no GPU, and the network only to install
# what is missing. Exit code 3: something is missing that only you can install.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Prints the heading of a step.
step() { printf '\n==> %s\n' "$*"; }
# Ends the script, because only its user can provide what is missing.
fail() { printf '%s\n' "$@" >&2; exit 3; }

# Prints the comment that a script begins with.
help() { sed -n '2,/^[^#]/ { /^[^#]/d; /SPDX/d; s/^# \{0,1\}//; p }' "$1"; }

# Runs a command and shows its output only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" </dev/null >"$log" 2>&1 || status=$?
  (( status == 0 )) || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# shellcheck source=scripts/setup_packages.sh
. "$root/scripts/setup_packages.sh"
# shellcheck source=scripts/setup_cuda.sh
. "$root/scripts/setup_cuda.sh"

# Everything that a build needs. Arguments: the sets of packages wanted.
set_up() {
  local newest wheels sets=("$@")
  newest=$(newest_cuda_major)
  wheels=$root/.deps/cuda$newest
  if find_toolkit "$newest" || find_wheels "$wheels"; then
    install_packages "${sets[@]}"
  else
    install_packages "${sets[@]}" wheels
    install_wheels "$wheels" "$newest"
  fi
  echo "CUDA headers: $cuda_include"
  echo "NVRTC: $nvrtc_library"
}

# configure FOLDER [CMAKE OPTION]...: makes the build folder or brings it up to date. An existing one keeps its
# generator, compiler launcher and flags, unless CXX is another compiler: then it begins anew.
configure() {
  local folder=$1
  shift
  local options=("-DNORMJIT_CUDA_INCLUDE=$cuda_include" "-DNORMJIT_NVRTC_INCLUDE=$nvrtc_include" "$@")
  if [[ -f $folder/CMakeCache.txt && -n ${CXX:-} ]] &&
      ! grep -q "^CMAKE_CXX_COMPILER:[A-Z]*=$(command -v "${CXX%% *}")\$" "$folder/CMakeCache.txt"; then
    rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"  # CMake alone would go on with the former compiler
  fi
  if [[ ! -f $folder/CMakeCache.txt ]]; then
    # Line numbers, but no types and variables: a file with the command line takes 11.6 s to compile, 18.9 s with all.
    options+=("-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG")
    if command -v ninja >/dev/null; then options+=(-G Ninja); fi
    if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  fi
  quietly cmake -S "$root" -B "$folder" "${options[@]}"
  link_nvrtc "$folder"
}

# The tool looks for NVRTC beside itself, so that it needs no environment variable.
link_nvrtc() {
  local folder=$1
  find "$folder" -maxdepth 1 -type l -name 'libnvrtc*' -delete
  ln -s "$nvrtc_library" "${nvrtc_library%/*}"/libnvrtc-builtins.so* "$folder/"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set_up tool tests
fi
