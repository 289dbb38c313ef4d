#!/bin/sh
# Looks for what pip cannot bring: compiler, Python headers, a Vulkan driver, and valgrind for the tests. On Debian and
# Ubuntu it installs what is missing as root, and prints the command otherwise. Usage: system_packages.sh [PYTHON [browsers]]
# With "browsers", also those that the tests open pages in; without them these tests are skipped, so that is no error.
set -eu
python=${1:-python3}
missing=""

any_of() {
  for name; do
    if command -v "$name" >/dev/null; then return 0; fi
  done
  return 1
}

command -v "$python" >/dev/null || missing="$missing python3"
command -v g++ >/dev/null || missing="$missing g++"
"$python" -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
"$python" -c 'import os, sysconfig; os.stat(sysconfig.get_paths()["include"] + "/Python.h")' 2>/dev/null ||
  missing="$missing python3-dev"
if [ "$(uname -s)" = Linux ]; then
  /sbin/ldconfig -p | grep -q 'libvulkan\.so\.1' || missing="$missing libvulkan1"
  if [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] &&
    ! find /usr/share/vulkan/icd.d /etc/vulkan/icd.d -name '*.json' 2>/dev/null | grep -q .; then
    missing="$missing mesa-vulkan-drivers"
  fi
  command -v valgrind >/dev/null || missing="$missing valgrind"
  # NVIDIA's Vulkan driver loads EGL.
  if [ -e /proc/driver/nvidia ] && ! /sbin/ldconfig -p | grep -q 'libEGL\.so\.1'; then missing="$missing libegl1"; fi
fi

if [ "${2:-}" = browsers ]; then
  browsers=""
  any_of chromium google-chrome google-chrome-stable chromium-browser || browsers="$browsers chromium"
  any_of firefox firefox-esr || browsers="$browsers firefox-esr"
  if [ -n "$browsers" ] && [ "$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then
    missing="$missing$browsers"
  elif [ -n "$browsers" ]; then
    echo "Tests of pages will be skipped for want of (by Debian's names):$browsers" >&2
  fi
fi

[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
  echo "Missing (by Debian's names):$missing. Install them with this system's package manager." >&2
  exit 1
fi
if [ "$(id -u)" != 0 ]; then
  echo "Missing system packages. Install them, then run this again:" >&2
  echo "  sudo apt-get install -y$missing" >&2
  exit 1
fi
apt-get update -q
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
