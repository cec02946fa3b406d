#!/usr/bin/env bash
# Installs the programs that bench/peers compares with into .venv-bench-peers (git-ignored): PyTorch, transformers, PEFT and TRL from PyPI, with
# pinned versions.
# usage: bash scripts/setup-bench-peers.sh     does nothing, in under 1 s, if they are installed already
# Exit code 4 if Python 3.10 or newer, or its pip, is missing. On x86-64 Linux PyPI's torch is the CUDA build, which uses an NVIDIA GPU if there is
# one and also runs without: about 6 GB of disk.
set -euo pipefail
me=setup-bench-peers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
help_wanted "$@"
cd "$root"
wanted='torch==2.15.0 transformers==5.23.0 peft==0.21.2 trl==1.16.0 accelerate==1.15.0 safetensors==0.8.0 numpy==2.4.6'
venv=$root/.venv-bench-peers

if venv_is_there; then
  say "$wanted are in .venv-bench-peers"
  exit 0
fi
new_venv 'PyTorch with TRL' 10 '' '6 GB' 9000
# shellcheck disable=SC2086 # several words on purpose
uv install $wanted
venv_works 'import torch, transformers, peft, trl'
say 'done: node bench/peers/run.ts'
