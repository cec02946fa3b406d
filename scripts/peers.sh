#!/usr/bin/env bash
# Holds dawn-rl against its peers in Python (PyTorch, transformers, PEFT, lm-eval): sets up .venv-peers from PyPI, where it is not there yet,
# and runs a script of test/peers/ in it, or every test_*.py of them (which start what they compare with themselves).
# usage: bash scripts/peers.sh                       every test/peers/test_*.py; exit code 4 where python3 or pip is missing
#        bash scripts/peers.sh SCRIPT.py WORDS...    one script, with its words
# On x86-64 Linux PyPI's torch is the CUDA build, which runs without a GPU and takes about 6 GB.
set -euo pipefail
me=peers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
packages='torch==2.13.0 transformers==5.18.* peft==0.21.* safetensors lm-eval[api,hf]==0.4.13' # the first four made the golden cases
venv=$root/.venv-peers

command -v python3 >/dev/null || { warn 'python3 is not there: the comparison with PEFT is skipped'; exit 4; }
if [ ! -f "$venv/ready" ] || [ "$(cat "$venv/ready")" != "$packages" ]; then
  # Debian keeps venv's own pip in a package of its own: --without-pip, and the system's pip installs into it
  python3 -m pip --version >/dev/null 2>&1 || { warn 'pip is not there: the comparison with PEFT is skipped'; exit 4; }
  say "installing $packages into .venv-peers (once; several GB)"
  rm -rf "$venv"
  python3 -m venv --without-pip "$venv"
  python3 -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-cache-dir $packages
  echo "$packages" >"$venv/ready"
fi
use_node # the scripts start cli.js and train.js
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
if [ $# -gt 0 ]; then exec "$venv/bin/python" "$@"; fi
found=no
for script in test/peers/test_*.py; do
  [ -f "$script" ] || continue
  found=yes
  say "$script"
  "$venv/bin/python" "$script"
done
[ $found = yes ] || { warn 'test/peers has no test_*.py'; exit 1; }
