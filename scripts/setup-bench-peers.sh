#!/usr/bin/env bash
# Installs what bench/peers compares with into .venv-bench-peers (git-ignored): PyTorch, transformers, PEFT and TRL from PyPI, versions pinned.
# usage: bash scripts/setup-bench-peers.sh     does nothing, in under 1 s, where they are there already
# Exit code 4 where Python 3.10 or newer, or its pip, is not there. On x86-64 Linux PyPI's torch is the CUDA build, which takes an NVIDIA GPU
# where there is one and runs without: about 6 GB of disk.
set -euo pipefail
me=setup-bench-peers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
packages='torch==2.15.0 transformers==5.23.0 peft==0.21.2 trl==1.16.0 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.6'
venv=$root/.venv-bench-peers

if [ "$(cat "$venv/ready" 2>/dev/null || true)" = "$packages" ]; then
  say "$packages are in .venv-bench-peers"
  exit 0
fi
find_python 10 99
[ -n "$python" ] || { warn 'Python 3.10 or newer is not there: PyTorch and TRL are skipped'; exit 4; }
"$python" -m pip --version >/dev/null 2>&1 || { warn "$python has no pip: PyTorch and TRL are skipped"; exit 4; }
free_kb=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
[ "$free_kb" -gt 9000000 ] || { warn "PyTorch takes about 6 GB in $venv, and 9 while it is installed; $((free_kb / 1000000)) GB are free there"; exit 1; }

say "$packages into .venv-bench-peers (once; about 6 GB)"
rm -rf "$venv"
# Debian keeps venv's own pip in a package of its own: --without-pip, and uv comes from the system's pip.
"$python" -m venv --without-pip "$venv"
"$python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-cache-dir uv
# shellcheck disable=SC2086 # several words on purpose
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-progress $packages
"$venv/bin/python" -c 'import torch, transformers, peft, trl' 2>"$venv/import.log" || {
  warn "the packages are installed and can't be imported; the end of $venv/import.log:"
  tail -n 3 "$venv/import.log" >&2
  exit 1
}
echo "$packages" >"$venv/ready"
say 'done: node bench/peers/run.ts'
