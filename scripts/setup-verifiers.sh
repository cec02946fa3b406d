#!/usr/bin/env bash
# Installs verifiers, whose environments a run can train on, and reasoning-gym into .venv-verifiers (git-ignored), where [env] python = true starts
# them.
# usage: bash scripts/setup-verifiers.sh [v1] [PACKAGES]     does nothing, in under 1 s, if they are installed already; PACKAGES (environments) are added
# With v1 it installs the verifiers version that has tasksets, into .venv-verifiers-v1: [env] python_path = ".venv-verifiers-v1/bin/python".
# Exit code 4 if Python 3.11, 3.12 or 3.13, or its pip, is missing. About 640 MB of disk, 450 for v1. Takes a minute with uv (which it installs into
# the venv).
set -euo pipefail
me=setup-verifiers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
help_wanted "$@"
users_folder=$PWD
cd "$root"
if [ "${1:-}" = v1 ]; then
  shift
  wanted='verifiers==0.4.0' venv=$root/.venv-verifiers-v1 size='450 MB' use='python_path = ".venv-verifiers-v1/bin/python" in [env] plays them'
  works='import verifiers.v1, zmq, msgpack'
else
  # 0.3.0 is the last version with load_environment and a server for such environments.
  wanted='verifiers==0.3.0 reasoning-gym==0.1.25' venv=$root/.venv-verifiers size='640 MB' use='node train.js @ configs/python-env.toml'
  works='import reasoning_gym; from verifiers.serve import ZMQEnvServer'
fi

# shellcheck disable=SC2086 # several words on purpose
if ! venv_is_there; then
  new_venv verifiers 11 13 "$size" 1500
  uv install $wanted
  venv_works "$works"
fi
# These versions stay pinned: an environment that needs others is refused. Relative paths among PACKAGES start from the user's folder.
# shellcheck disable=SC2086
[ $# = 0 ] || (cd "$users_folder" && uv install $wanted "$@")
say "$wanted are in ${venv#"$root"/}${*:+, with $*}: $use"
