#!/usr/bin/env bash
# Compares dawn-rl with its peers in Python (PyTorch, transformers, PEFT, lm-eval). Installs .venv-peers from PyPI if it is missing, and uses it to
# run a script of test/peers/, or every test_*.py there (these start dawn-rl themselves).
# usage: bash scripts/peers.sh                       every test/peers/test_*.py; exit code 4 if there is no Python for it
#        bash scripts/peers.sh SCRIPT.py WORDS...    one script, with its words
# On x86-64 Linux PyPI's torch is the CUDA build, which runs without a GPU and takes about 6 GB.
set -euo pipefail
me=peers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
help_wanted "$@"
cd "$root"
wanted='torch==2.13.0 transformers==5.18.* peft==0.21.* safetensors lm-eval[api,hf]==0.4.13' # the golden cases were made with the first four
venv=$root/.venv-peers

if ! venv_is_there; then
  new_venv 'the comparison with PEFT' 10 13 '6 GB' 9000
  # shellcheck disable=SC2086 # several words on purpose
  uv install $wanted
  venv_works 'import torch, transformers, peft, lm_eval'
fi
use_node # the scripts start cli.js and train.js
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
if [ $# -gt 0 ]; then exec "$venv/bin/python" "$@"; fi
scripts=(test/peers/test_*.py)
[ -f "${scripts[0]}" ] || { warn 'test/peers has no test_*.py'; exit 1; }
# Two at a time, as Python imports with one core. What a script prints comes when it is done. PyTorch has one thread in each: more would spin on cores
# that the other script and our commands need.
export OMP_NUM_THREADS=${OMP_NUM_THREADS-1}
# shellcheck disable=SC2016 # expanded by the inner shell
printf '%s\n' "${scripts[@]}" | xargs -n 1 -P 2 bash -c 'code=0; said=$("$0" "$1" 2>&1) || code=$?; printf "%s\n%s\n" "peers: $1" "$said"; exit $code' "$venv/bin/python"
