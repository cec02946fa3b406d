#!/usr/bin/env bash
# Runs a command with the Mesa of Debian's unstable release (26 or newer). Its software driver has fused multiply-add instructions, and matrix units
# to test their kernels with. It is installed into .mesa with the C library that it needs, without changing the system's packages. The first run
# downloads 80 MB (230 MB on disk). The command sees no other drivers, not even a GPU's. For Debian, or a system with apt and Debian's keys (package
# debian-archive-keyring).
# usage: bash scripts/newer-mesa.sh COMMAND...     for example: node train.js @ config.toml, npm test -- test/kernels
#        bash scripts/newer-mesa.sh                sets it up, and prints the version
#        bash scripts/newer-mesa.sh --renew        fetches today's version
# Exit code 4 if it cannot be set up.
set -euo pipefail
me=newer-mesa
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/driver.sh"
. "$root/scripts/debian-sid.sh"
help_wanted "$@"
home=$root/.mesa
if [ "${1:-}" = --renew ]; then
  shift
  rm -rf "$home"
fi

[ -e "$home/root" ] || unpack_sid "$home" 230 600 "Mesa 26 or newer of the system's own does as well: 'node cli.js doctor' names the one that is there" \
  mesa-vulkan-drivers libvulkan1 libstdc++6
libraries=$(dirname "$(find "$home/root" -name libvulkan_lvp.so | head -n 1)")
loader=$(find "$libraries" "$home"/root/usr/lib64 "$home"/root/lib* -maxdepth 1 -name 'ld-linux-*.so.*' 2>/dev/null | head -n 1 || true)
[ -n "$loader" ] || { warn "what lies in .mesa has no C library: bash scripts/newer-mesa.sh --renew"; exit 4; }
find_node
[ -n "$NODE" ] || { bash "$root/scripts/setup.sh"; find_node; }
# The program itself, in case the PATH has a script that starts it, as for a command that already runs under this script.
real=$("$NODE" -p 'process.env.DAWN_RL_REAL_NODE ?? process.execPath')

# put FILE: replaces the file atomically, as another run of this script may be reading it
put() { cat >"$home/$1.$$" && chmod +x "$home/$1.$$" && mv "$home/$1.$$" "$home/$1"; }

# quoted TEXT: quotes a text as one word of a shell script
quoted() { printf '%s' "$1" | sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/"; }

# A `node` that is started by unstable's dynamic loader with unstable's libraries. Node takes the loader for its own executable, so child processes
# must use this script as well.
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
