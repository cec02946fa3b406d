#!/usr/bin/env bash
# npm run test:verifiers: sets up what is missing, verifiers included, and runs the tests on its environments. Installing takes 45 s.
# usage: npm run test:verifiers -- WORDS      WORDS go to vitest
# Exit code 4 where there is no Python for verifiers.
set -euo pipefail
me=test-verifiers
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
bash scripts/setup.sh
bash scripts/setup-verifiers.sh
use_node
exec "$NODE" node_modules/vitest/vitest.mjs run test/python "$@"
