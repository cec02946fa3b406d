#!/usr/bin/env bash
# For a machine that has a GPU and nothing else (Linux, no Node, no internet): packs Node, the npm packages that runs, benchmarks and tests take,
# and Vulkan's loader into a folder of the checkout, about 45 MB; models and Python are not in it.
# usage: bash bench/pack.sh [FOLDER]        FOLDER is .pack unless given
# There, in the checkout with that folder:  . FOLDER/unpack.sh && node cli.js doctor && node bench/gpu.ts --out gpu.json
set -euo pipefail
me=pack
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
help_wanted "$@"
use_node
[ "$(uname -sm)" = 'Linux x86_64' ] || { warn "only Linux on x86-64 is packed, and this is $(uname -sm)"; exit 1; }
cd "$root"
folder=${1:-.pack}
mkdir -p "$folder"

say 'Node'
xz -9 -T0 -c "$NODE" >"$folder/node.xz"

say 'npm packages'
"$NODE" --input-type=module >"$folder/packages.list" <<'JS'
// The packages of `dependencies` and the tests', with all that they need; of binaries this system's.
import { existsSync, readFileSync } from 'node:fs'
const json = (path) => JSON.parse(readFileSync(path, 'utf8'))
const found = new Set()
const add = (name, from) => {
  for (let at = from; ; at = at.slice(0, at.lastIndexOf('/node_modules/'))) {
    const path = `${at}/node_modules/${name}`
    if (existsSync(`${path}/package.json`)) return found.has(path) || (found.add(path), needs(path))
    if (!at.includes('/node_modules/')) return
  }
}
const needs = (path) => {
  const { dependencies, optionalDependencies, peerDependencies } = json(`${path}/package.json`)
  for (const name of Object.keys({ ...dependencies, ...optionalDependencies, ...peerDependencies })) add(name, path)
}
for (const name of [...Object.keys(json('package.json').dependencies), 'vitest', 'fast-check']) add(name, '.')
console.log([...found].map((path) => path.slice(2)).join('\n'))
JS
tar -c --exclude='*.map' --exclude='*.d.ts' --exclude='*.d.mts' --exclude='*.d.cts' --exclude='*.md' --exclude='webgpu/dist/darwin*' --exclude='webgpu/dist/win32*' \
  --exclude='webgpu/dist/linux-arm64' -T "$folder/packages.list" | xz -9 -T0 >"$folder/packages.tar.xz"
rm "$folder/packages.list"

say "Vulkan's loader"
loader=$(ldconfig -p | sed -n 's/.*libvulkan\.so\.1 .*x86-64.* => //p' | head -1)
[ -n "$loader" ] || { warn 'libvulkan.so.1 is not here: bash scripts/setup.sh --driver installs it'; exit 1; }
cp -L "$loader" "$folder/libvulkan.so.1"

cat >"$folder/unpack.sh" <<'SH'
# Source this in the checkout: it provides Node and the packages of this folder, and Vulkan's loader where the machine has none.
pack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$pack/bin" "$pack/lib"
[ -x "$pack/bin/node" ] || { xz -dc "$pack/node.xz" >"$pack/bin/node" && chmod +x "$pack/bin/node"; }
[ -d node_modules/webgpu ] || tar -xJf "$pack/packages.tar.xz"
export PATH=$pack/bin:$PATH
if ! ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1'; then
  cp "$pack/libvulkan.so.1" "$pack/lib/" && export LD_LIBRARY_PATH=$pack/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# NVIDIA's driver may be where no loader looks.
for icd in /usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json; do
  if [ -z "${VK_DRIVER_FILES:-}" ] && [ -e "$icd" ] && [ ! -e /usr/share/vulkan/icd.d/nvidia_icd.json ] && [ ! -e /etc/vulkan/icd.d/nvidia_icd.json ]; then export VK_DRIVER_FILES=$icd; fi
done
SH
say "$(du -sm "$folder" | cut -f1) MB in $folder; there: . $folder/unpack.sh"
