#!/usr/bin/env bash
# Installs verifiers, whose environments a run can train on, and reasoning-gym into .venv-verifiers (git-ignored): [env] python = true starts them there.
# usage: bash scripts/setup-verifiers.sh [PACKAGES]     does nothing, in under 1 s, where they are there already; PACKAGES (environments) are added
# Exit code 4 where Python 3.11, 3.12 or 3.13, or its pip, is not there. About 640 MB of disk; a minute with uv (which it installs into the environment).
set -euo pipefail
me=setup-verifiers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
# 0.3.0 is the last version with environments that load_environment makes, and a server for them.
packages='verifiers==0.3.0 reasoning-gym==0.1.25'
venv=$root/.venv-verifiers

if [ "$(cat "$venv/ready" 2>/dev/null || true)" != "$packages" ]; then
  find_python 11 13
  [ -n "$python" ] || { warn 'verifiers needs Python 3.11 to 3.13, which is not there. Debian and Ubuntu: sudo apt-get install python3 python3-venv python3-pip'; exit 4; }
  "$python" -m pip --version >/dev/null 2>&1 || { warn "$python has no pip. Debian and Ubuntu: sudo apt-get install python3-pip"; exit 4; }
  free_kb=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
  [ "$free_kb" -gt 1500000 ] || { warn "verifiers takes about 640 MB in $venv, and twice that while it is installed; $((free_kb / 1000)) MB are free there"; exit 1; }
  say "$packages into .venv-verifiers (once; about 640 MB)"
  rm -rf "$venv"
  # Debian keeps venv's own pip in a package of its own: --without-pip, and uv comes from the system's pip.
  "$python" -m venv --without-pip "$venv"
  "$python" -m pip --python "$venv/bin/python" install --quiet --disable-pip-version-check --no-cache-dir uv
  # shellcheck disable=SC2086 # several words on purpose
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-progress $packages
  "$venv/bin/python" -c 'import reasoning_gym; from verifiers.serve import ZMQEnvServer' 2>"$venv/import.log" || {
    warn "the packages are installed and can't be imported; the end of $venv/import.log:"
    tail -n 3 "$venv/import.log" >&2
    exit 1
  }
  echo "$packages" >"$venv/ready"
fi
if [ $# -gt 0 ]; then
  # Beside these versions: an environment that wants others is refused, not given them.
  # shellcheck disable=SC2086
  "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-progress $packages "$@"
fi
say "$packages are in .venv-verifiers${*:+, with $*}: node train.js @ configs/python-env.toml"
