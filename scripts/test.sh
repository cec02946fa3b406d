#!/usr/bin/env bash
# npm test: installs what is missing, downloads the model, and runs every test (vitest).
# usage: npm test -- WORDS      WORDS are passed to vitest, for example test/gpu, or -t 'name of a test'
# Without the model, the tests that need it are skipped and say so. With CI set, that is a failure.
set -euo pipefail
me=test
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
bash scripts/setup.sh
use_node
quick_shaders
if ! bash scripts/get-smollm2.sh; then
  if [ -n "${CI:-}" ]; then exit 3; fi
  say 'so the tests on the real model are skipped'
fi
exec "$NODE" node_modules/vitest/vitest.mjs run "$@"
