#!/usr/bin/env bash
# Runs a command on the Mesa of Debian's unstable release (26 or newer), whose software driver makes one instruction of a multiply-add, and has matrix units to
# test their kernels with. It lies in .mesa with the C library that it needs; the system's packages stay as they are. The first time it fetches 80 MB (230 MB on disk).
# The command sees no other drivers, not even a GPU's. For Debian, or a system with apt and Debian's keys (package debian-archive-keyring).
# usage: bash scripts/newer-mesa.sh COMMAND...     for example: node train.js @ config.toml, npm test -- test/kernels
#        bash scripts/newer-mesa.sh                sets it up, and prints the version
#        bash scripts/newer-mesa.sh --renew        fetches today's version
# Exit code 4 where it cannot be set up.
set -euo pipefail
me=newer-mesa
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/driver.sh"
help_wanted "$@"
home=$root/.mesa
if [ "${1:-}" = --renew ]; then
  shift
  rm -rf "$home"
fi

# Fetches the driver, and what it depends on by Debian's lists, into a new folder beside $home, which then replaces $home.
fetch_mesa() {
  local keys=/usr/share/keyrings/debian-archive-keyring.gpg mirror free words
  for words in apt-get dpkg-deb; do
    command -v $words >/dev/null || { warn "this system has no $words, which unpacks Debian's packages. Mesa 26 or newer of the system's own does as well: 'node cli.js doctor' names the one that is there"; exit 4; }
  done
  [ -r $keys ] || { warn "Debian's keys are not here ($keys): sudo apt-get install debian-archive-keyring"; exit 4; }
  free=$(($(df -Pk "$root" | awk 'NR == 2 { print $4 }') / 1000))
  [ "$free" -gt 700 ] || { warn "it takes 230 MB in .mesa, and 600 MB while it is unpacked; $free MB are free there"; exit 4; }
  # The mirror that apt has for Debian here.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep -m 1 -E '/debian/?$' || true)
  mirror=${mirror:-http://deb.debian.org/debian/}
  say "Mesa of Debian unstable from $mirror into .mesa (once; 80 MB)"
  work=$(mktemp -d "$root/.mesa-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir -p "$work"/lists/partial "$work"/debs/partial "$work/none" "$work/root"
  echo "deb [signed-by=$keys] $mirror sid main" >"$work/sources"
  # apt is given no list of installed packages, so that every dependency is fetched, the C library too.
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources" -o "Dir::Etc::SourceParts=$work/none" -o "Dir::State::Lists=$work/lists" -o "Dir::State::Status=/dev/null"
    -o "Dir::Cache::Archives=$work/debs" -o Dir::Cache::PkgCache= -o Dir::Cache::SrcPkgCache= -o APT::Install-Recommends=false -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)")
  "${apt[@]}" update || { warn 'apt-get update failed; its words are above'; exit 4; }
  "${apt[@]}" -y --download-only install mesa-vulkan-drivers libvulkan1 libstdc++6 >/dev/null || { warn 'apt-get could not fetch the packages; its words are above'; exit 4; }
  local deb
  for deb in "$work"/debs/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
  # Drivers of GPUs, and documentation.
  find "$work/root" \( -name 'libvulkan_*' ! -name 'libvulkan_lvp.so' -o -name 'libVkLayer_*' -o -path '*/share/doc/*' -o -path '*/share/locale/*' \) ! -type d -delete
  rm -rf "$work/debs" "$work/lists" "$work/none"
  rm -rf "$home"
  mv "$work" "$home"
  trap - EXIT
}

[ -e "$home/root" ] || fetch_mesa
libraries=$(dirname "$(find "$home/root" -name libvulkan_lvp.so | head -n 1)")
loader=$(find "$libraries" "$home"/root/usr/lib64 "$home"/root/lib* -maxdepth 1 -name 'ld-linux-*.so.*' 2>/dev/null | head -n 1 || true)
[ -n "$loader" ] || { warn "what lies in .mesa has no C library: bash scripts/newer-mesa.sh --renew"; exit 4; }
find_node
[ -n "$NODE" ] || { bash "$root/scripts/setup.sh"; find_node; }
# The program itself, where the PATH has a script that starts it: as in a command that already runs under this script.
real=$("$NODE" -p 'process.env.DAWN_RL_REAL_NODE ?? process.execPath')

# put FILE: replaces it atomically, as another run of this script may be reading it
put() { cat >"$home/$1.$$" && chmod +x "$home/$1.$$" && mv "$home/$1.$$" "$home/$1"; }

# quoted TEXT: as one word of a shell script
quoted() { printf '%s' "$1" | sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/"; }

# A `node` that is started by unstable's dynamic loader, with unstable's libraries. Node takes the loader for its own executable: child processes must use this script again.
mkdir -p "$home/bin"
"$real" -p '`process.execPath = ${JSON.stringify(process.argv[1])}`' "$home/bin/node" | put itself.cjs
put bin/node <<END
#!/bin/sh
exec $(quoted "$loader") --library-path $(quoted "$libraries") --argv0 node $(quoted "$real") --require $(quoted "$home/itself.cjs") "\$@"
END
echo "{ \"file_format_version\": \"1.0.1\", \"ICD\": { \"library_path\": \"$libraries/libvulkan_lvp.so\", \"api_version\": \"1.4.0\" } }" | put driver.json
export DAWN_RL_REAL_NODE=$real
export PATH=$home/bin:$PATH VK_DRIVER_FILES=$home/driver.json
if [ $# = 0 ]; then
  NODE=$home/bin/node
  code=0
  answer=$(probe_adapter) || code=$?
  say "$answer"
  [ $code != 1 ] || exit 4
  exit 0
fi
exec "$@"
