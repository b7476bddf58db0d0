# SPDX-License-Identifier: Apache-2.0
# The CUDA headers and NVRTC: of a toolkit on this machine, else out of pip's wheels. Sourced by setup.sh.
# shellcheck shell=bash disable=SC2034

readonly kOldestToolkit=12000  # CUDA_VERSION of the oldest NVRTC that normjit works with
readonly kDriverOfCuda13=580   # older drivers refuse what NVRTC 13 makes

# The results: the folders of cuda.h and nvrtc.h, and the libnvrtc of their version.
cuda_include=''
nvrtc_include=''
nvrtc_library=''

# The major number of the NVIDIA driver ("580"); empty without a driver.
driver_major() {
  local text
  text=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || text=''
  if [[ ! $text =~ ^[0-9]+\. ]]; then
    # A container may have the driver without its tools: the library's file is libcuda.so.580.65.06.
    text=$(readlink -f "$(PATH=$PATH:/sbin ldconfig -p | awk '/libcuda\.so\.1 / { print $NF; exit }')") || text=''
    text=${text##*/libcuda.so.}
  fi
  if [[ $text =~ ^([0-9]+)\. ]]; then echo "${BASH_REMATCH[1]}"; fi
}

# The newest CUDA major whose kernels this machine's driver loads; 13 without a driver.
newest_cuda_major() {
  local driver
  driver=$(driver_major)
  if (( ${driver:-kDriverOfCuda13} < kDriverOfCuda13 )); then echo 12; else echo 13; fi
}

# The first of some files that exists.
first_file() {
  local file
  for file in "$@"; do
    if [[ -f $file ]]; then
      echo "$file"
      return
    fi
  done
  return 1
}

# Uses the toolkit in this folder, if its version fits.
use_toolkit() {
  local home=$1 newest=$2 version major library
  [[ -f $home/include/cuda.h && -f $home/include/nvrtc.h ]] || return 1
  version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$home/include/cuda.h")
  major=$((version / 1000))
  (( version >= kOldestToolkit && major <= newest )) || return 1
  library=$(first_file "$home"/{lib64,lib,lib/*-linux-gnu,targets/*-linux/lib}/libnvrtc.so."$major") || return 1
  first_file "${library%/*}"/libnvrtc-builtins.so* >/dev/null || return 1
  cuda_include=$home/include
  nvrtc_include=$home/include
  nvrtc_library=$library
}

# Looks in the usual places for a toolkit.
find_toolkit() {
  local newest=$1 home nvcc
  nvcc=$(readlink -f "$(command -v nvcc)") || nvcc=''
  for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda "${nvcc%/bin/nvcc}" /usr; do
    if [[ -n $home ]] && use_toolkit "$home" "$newest"; then return; fi
  done
  return 1
}

# The same out of pip's wheels, which a virtual environment in .deps/ holds.
find_wheels() {
  local environment=$1 site
  # One folder for all of CUDA 13, one for each component of CUDA 12.
  for site in "$environment"/lib/python3*/site-packages/nvidia; do
    if ! cuda_include=$(first_file "$site"/{cu13,cuda_runtime}/include/cuda.h) ||
      ! nvrtc_include=$(first_file "$site"/{cu13,cuda_nvrtc}/include/nvrtc.h) ||
      ! nvrtc_library=$(first_file "$site"/{cu13,cuda_nvrtc}/lib/libnvrtc.so.1[23]); then
      continue
    fi
    cuda_include=${cuda_include%/*}
    nvrtc_include=${nvrtc_include%/*}
    return
  done
  return 1
}

# install_wheels ENVIRONMENT CUDA_MAJOR [PIP OPTION]...
install_wheels() {
  local environment=$1 major=$2 wheels
  shift 2
  case $major in
    12) wheels=('nvidia-cuda-nvrtc-cu12==12.9.*' 'nvidia-cuda-runtime-cu12==12.9.*') ;;
    13) wheels=('nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-runtime==13.0.*') ;;
  esac
  step "Fetching ${wheels[*]} into .deps/"
  if ! quietly python3 -m venv --clear "$environment" ||
    ! quietly "$environment/bin/python" -m pip install --disable-pip-version-check "$@" "${wheels[@]}" ||
    ! find_wheels "$environment"; then
    fail "pip could not install ${wheels[*]}; see above." \
      "Run this again, or install a CUDA toolkit of version 12.0 to $major.x and name its folder in CUDA_HOME."
  fi
}

# Makes this folder one that CUDA_HOME may name, with the headers and NVRTC that were found: wheels have them in several folders.
gather_cuda() {
  local home=$1
  mkdir -p "$home/include" "$home/lib64"
  cp "$cuda_include/cuda.h" "$nvrtc_include/nvrtc.h" "$home/include"
  cp -L "$nvrtc_library" "${nvrtc_library%/*}"/libnvrtc-builtins.so.* "$home/lib64"
}
