#!/usr/bin/env bash
# npm run test:vllm: sets up what is missing, vLLM included, and runs the tests that need a real vLLM server. About 9 minutes on 2 cores.
# usage: npm run test:vllm -- WORDS      WORDS go to vitest
# Exit code 4 where there is no Python for vLLM.
set -euo pipefail
me=test-vllm
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$root"
bash scripts/setup.sh
bash scripts/setup-vllm.sh
use_node
quick_shaders
export DAWN_RL_VLLM=1
# The CPU build pins a server's threads to all cores but the last. Two servers at a time, as two test files have them, then share one core of two, with the compiler
# that each of them calls: on CI one did not answer for 400 s, and another for the 120 s of a push.
export VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND-nobind}
exec "$NODE" node_modules/vitest/vitest.mjs run test/vllm "$@"
