#!/usr/bin/env bash
# npm run test:verifiers: installs what is missing, including verifiers and some environments for it, and runs the tests with them. Installing takes
# a minute.
# usage: npm run test:verifiers -- WORDS      WORDS are passed to vitest
# Exit code 4 if there is no Python for verifiers.
set -euo pipefail
me=test-verifiers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
bash scripts/setup.sh
# Third-party environments from PyPI, unchanged. These two download nothing themselves.
bash scripts/setup-verifiers.sh sophistry-bench-sprint==0.1.6 staros-stardata==0.1.1
bash scripts/setup-verifiers.sh v1
# verifiers' own environment that downloads nothing is among the tests in its source package.
own=.venv-verifiers/own-environments
if [ ! -f $own/echo_multi_v0.py ]; then
  find_python 11 13
  work=$(mktemp -d)
  # Not `:all:`: the packages that build verifiers would be built from their sources too, which takes 5 minutes.
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary verifiers --dest "$work" verifiers==0.3.0
  tar -xzf "$work"/verifiers-*.tar.gz -C "$work"
  mkdir -p $own
  cp "$work"/verifiers-*/tests/v1/fixtures/echo_multi_v0.py $own/
  rm -rf "$work"
fi
use_node
quick_shaders
exec "$NODE" node_modules/vitest/vitest.mjs run test/python "$@"
