#!/usr/bin/env bash
# npm run test:verifiers: sets up what is missing, verifiers and some environments for it included, and runs the tests on them. Installing takes 80 s.
# usage: npm run test:verifiers -- WORDS      WORDS go to vitest
# Exit code 4 where there is no Python for verifiers.
set -euo pipefail
me=test-verifiers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
bash scripts/setup.sh
# Third-party environments from PyPI, unchanged; these fetch nothing themselves.
bash scripts/setup-verifiers.sh sophistry-bench-sprint==0.1.6 staros-stardata==0.1.1
bash scripts/setup-verifiers.sh v1
# The one of verifiers' own that fetches nothing is in its source package, among its tests.
own=.venv-verifiers/own-environments
if [ ! -f $own/echo_multi_v0.py ]; then
  find_python 11 13
  work=$(mktemp -d)
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$work" verifiers==0.3.0
  tar -xzf "$work"/verifiers-*.tar.gz -C "$work"
  mkdir -p $own
  cp "$work"/verifiers-*/tests/v1/fixtures/echo_multi_v0.py $own/
  rm -rf "$work"
fi
use_node
quick_shaders
exec "$NODE" node_modules/vitest/vitest.mjs run test/python "$@"
