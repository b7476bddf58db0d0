#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the packages of a release out of the commit that is checked out.
#
#   scripts/package.sh source [DIRECTORY]
#   scripts/package.sh debian [--suite SUITE] [--no-chroot] [DIRECTORY]
#
# source   normjit-VERSION.tar.xz, normjit-VERSION.spdx.json, and SHA256SUMS of both; with NORMJIT_SIGN_KEY also
#          SHA256SUMS.minisig, by the tool in build/ or on the PATH. The same commit always makes the same tarball.
# debian   the source package and the binary packages of packaging/debian. They are built in a clean chroot of mmdebstrap,
#          installed and tried in another one, and judged by lintian: an error or a warning of it is a failure. SUITE is
#          that of this machine, else bookworm. Where mounting or chroot is refused, and with --no-chroot, they are built
#          with what this machine has, and unpacked into a folder in place of being installed; the output says so.
#          DEB_BUILD_OPTIONS=noopt makes a trial of it shorter.
#
# DIRECTORY is dist/. The CUDA headers and NVRTC are those that scripts/setup.sh finds or fetches. Exit code 3: something is
# missing that only you can install.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/setup.sh
. "$here/setup.sh"

usage() { echo "package.sh: $*; see package.sh --help" >&2; exit 2; }
what='' directory=$root/dist suite='' chroot=yes
while (( $# > 0 )); do
  case $1 in
    -h | --help) help "$here/package.sh"; exit ;;
    --suite) suite=${2:?package.sh: --suite needs a name}; shift ;;
    --no-chroot) chroot=no ;;
    -*) usage "unknown option $1" ;;
    *) if [[ -z $what ]]; then what=$1; else directory=$1; fi ;;
  esac
  shift
done
[[ $what == source || $what == debian ]] || usage "name source or debian"

version=$(sed -n 's/^project(normjit VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# tarball FILE: writes the files of the commit, with the time of the commit and without owners' names.
tarball() {
  git -C "$root" -c tar.umask=0022 archive --format=tar --prefix="normjit-$version/" HEAD | xz --threads=1 -6 > "$1"
}

make_source() {
  local name=normjit-$version tool sums=SHA256SUMS
  step "Packing $name.tar.xz"
  [[ -z $(git -C "$root" status --porcelain --untracked-files=no) ]] || echo "Changes that are not committed are left out." >&2
  tarball "$directory/$name.tar.xz"
  python3 "$here/spdx.py" --source "$directory/$name.tar.xz" > "$directory/$name.spdx.json"
  (cd "$directory" && sha256sum "$name.tar.xz" "$name.spdx.json" > $sums)
  if [[ -z ${NORMJIT_SIGN_KEY:-} ]]; then
    echo "$sums is not signed: NORMJIT_SIGN_KEY names no key."
  else
    tool=$root/build/normjit
    [[ -x $tool ]] || tool=$(command -v normjit) || fail "There is no normjit to sign with: build it, or put it on the PATH."
    "$tool" sign file --key "$NORMJIT_SIGN_KEY" "$directory/$sums"
  fi
  (cd "$directory" && ls -l "$name".* $sums*)
}

# Whether this user may mount and change the root folder, as mmdebstrap does.
can_chroot() {
  local as=()
  (( EUID == 0 )) || as=(--map-root-user)
  unshare "${as[@]}" --mount sh -c 'mount -t tmpfs tmpfs /mnt && chroot / true' 2>/dev/null
}

# in_chroot SCRIPT PACKAGE...: runs /normjit/SCRIPT in a new system that has the packages, with $work/normjit as /normjit,
# which comes back with what was added to its folder out/.
in_chroot() {
  local script=$1 include=()
  shift
  (( $# == 0 )) || include=("--include=$(IFS=,; echo "$*")")
  # No index of manual pages, which takes longer than all the rest; and nothing here must outlive a loss of power.
  # shellcheck disable=SC2016
  mmdebstrap --quiet --variant=buildd "${include[@]}" --format=null --dpkgopt=force-unsafe-io \
    --essential-hook='echo man-db man-db/auto-update boolean false | chroot "$1" debconf-set-selections' \
    --customize-hook="copy-in $work/normjit /" \
    --customize-hook="chroot \"\$1\" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 sh /normjit/$script" \
    --customize-hook="copy-out /normjit/out $work/normjit" "$suite" /dev/null
}

make_debian() {
  local tree=$work/normjit/normjit-$version package
  if [[ -z $suite ]]; then suite=$(. /etc/os-release; [[ ${ID:-} == debian ]] && echo "${VERSION_CODENAME:-}") || suite=''; fi
  suite=${suite:-bookworm}
  set_up
  if [[ $chroot == yes ]] && ! can_chroot; then
    echo "Mounting or chroot is refused here."
    chroot=no
  fi
  if [[ $chroot == yes ]]; then install_packages chroot; else install_packages tool debian; fi

  mkdir -p "$work/normjit/out"
  gather_cuda "$work/normjit/cuda"
  tarball "$work/normjit/normjit_$version.orig.tar.xz"
  tar -C "$work/normjit" -xf "$work/normjit/normjit_$version.orig.tar.xz"
  cp -r "$tree/packaging/debian" "$tree/debian"
  grep -q "^normjit ($version-" "$tree/debian/changelog" || fail "packaging/debian/changelog does not begin with version $version."
  cat > "$work/normjit/build" <<END
set -eu
cd "\$(dirname "\$0")/normjit-$version"
export CUDA_HOME="\$(cd ../cuda && pwd)" SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH
export DEB_BUILD_PROFILES=pkg.normjit.cuda DEB_BUILD_OPTIONS="parallel=$(nproc) ${DEB_BUILD_OPTIONS:-}"
test $chroot = no || apt-get -qq build-dep --no-install-recommends ./
dpkg-buildpackage -us -uc
mv ../*.deb ../*.dsc ../*.debian.tar.* ../*.orig.tar.* ../*.changes ../*.buildinfo ../out
END
  cat > "$work/normjit/try" <<END
set -eu
export CUDA_HOME="\$(cd "\$(dirname "\$0")/cuda" && pwd)"
cd "\$(dirname "\$0")/normjit-$version"
for test in tool development; do
  echo "-- \$test"
  (export AUTOPKGTEST_TMP="\$(mktemp -d)"; sh debian/tests/\$test)
done
END
  cat > "$work/normjit/install" <<END
set -eu
apt-get -qq update
apt-get -qq install --no-install-recommends /normjit/out/*.deb
sh /normjit/try
echo "-- lintian"
lintian --allow-root --info --fail-on error,warning /normjit/out/normjit_*.changes
END

  if [[ $chroot == yes ]]; then
    step "Building in a clean chroot of $suite"
    in_chroot build
    step "Installing, trying and judging in a clean chroot of $suite"
    in_chroot install build-essential cmake libsodium23 lintian pkgconf
  else
    step "Building here, without a chroot"
    quietly sh "$work/normjit/build"
    step "Unpacking into a folder, without a chroot, and trying"
    for package in "$work"/normjit/out/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
    NORMJIT_TEST_PREFIX=$work/unpacked sh "$work/normjit/try"
    step "lintian"
    lintian --allow-root --fail-on error,warning "$work"/normjit/out/normjit_*.changes
  fi
  cp "$work"/normjit/out/* "$directory"
  step "In $directory"
  (cd "$directory" && ls -l ./*"$version"*)
}

"make_$what"
