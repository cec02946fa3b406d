#!/usr/bin/env bash
# npm run test:vllm: installs what is missing, including vLLM, and runs the tests that need a real vLLM server. About 9 minutes on 2 cores.
# usage: npm run test:vllm -- WORDS      WORDS are passed to vitest
# Exit code 4 if there is no Python for vLLM.
set -euo pipefail
me=test-vllm
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
bash scripts/setup.sh
bash scripts/setup-vllm.sh
use_node
quick_shaders
export DAWN_RL_VLLM=1
exec "$NODE" node_modules/vitest/vitest.mjs run test/vllm "$@"
