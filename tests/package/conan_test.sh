#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `conan create packaging/conan` makes the package, in a Conan home of its own, and its test_package links and runs. Conan is
# fetched by pip if it is missing.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! command -v conan > /dev/null; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q 'conan>=2,<3'
  PATH=$work/venv/bin:$PATH
fi
export CONAN_HOME=$work/home
conan profile detect > /dev/null 2>&1
conan create "$source/packaging/conan" --build=missing --no-remote -s compiler.cppstd=20 \
  -c tools.cmake.cmake_layout:test_folder="$work/test"
