#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# release_test.sh TOOL: scripts/package.sh source makes the same files twice: here, and in a clone with another path, time
# zone, umask and language. They hold what git has, the tool and minisign accept their signature and refuse a changed
# file's, and the validator of spdx-tools, which pip fetches if it is missing, accepts the SPDX document.
set -euo pipefail
tool=$(realpath "$1")
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "release_test.sh: $*" >&2; exit 1; }
refuses() { if "$@" > "$work/log" 2>&1; then fail "accepted: $*"; fi; }

"$tool" sign keygen --secret "$work/key" --public "$work/pub"
mkdir "$work/bin"
ln -s "$tool" "$work/bin/normjit"
export NORMJIT_SIGN_KEY=$work/key PATH=$work/bin:$PATH

"$source/scripts/package.sh" source "$work/first"
git clone -q "$source" "$work/a clone"
(umask 077 && TZ=Pacific/Auckland LC_ALL=C HOME=$work "$work/a clone/scripts/package.sh" source "$work/second" > /dev/null)
for file in "$work"/first/*; do
  name=${file##*/}
  if [[ $name != *.minisig ]]; then cmp "$file" "$work/second/$name"; fi
done

cd "$work/first"
sha256sum --check SHA256SUMS
"$tool" sign check --trust "$work/pub" SHA256SUMS
if command -v minisign > /dev/null; then minisign -V -p "$work/pub" -m SHA256SUMS; else echo "No minisign here."; fi
cp SHA256SUMS SHA256SUMS.minisig "$work"
sed -i '1s/^./x/' "$work/SHA256SUMS"
refuses "$tool" sign check --trust "$work/pub" "$work/SHA256SUMS"

tarball=$(echo normjit-*.tar.xz)
diff <(tar -tf "$tarball" | grep -v '/$' | cut -d/ -f2- | sort) <(git -C "$source" ls-tree -r --name-only HEAD | sort)
[[ $(tar --numeric-owner -tvf "$tarball" | awk '{ print $2 }' | sort -u) == 0/0 ]] || fail "the tarball names an owner"

validator=$(command -v pyspdxtools) || {
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install -q spdx-tools
  validator=$work/venv/bin/pyspdxtools
}
"$validator" --infile "${tarball%.tar.xz}.spdx.json"
sed 's/"Apache-2.0"/"No licence"/' "${tarball%.tar.xz}.spdx.json" > "$work/wrong.spdx.json"
refuses "$validator" --infile "$work/wrong.spdx.json"
echo "The release is the same twice, signed, and described."
