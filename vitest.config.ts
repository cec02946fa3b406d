import { defineConfig } from 'vitest/config'

// One GPU device a test file, and a software adapter uses every core by itself: files run one after another, in forked processes,
// because a process must be able to end although Dawn holds threads. DAWN_RL_TEST_WORKERS=2 runs two at a time, which helps where much is compiled or
// waited for. The limits are long: a driver that has compiled no kernel yet needs minutes.
const workers = Number(process.env.DAWN_RL_TEST_WORKERS ?? 1)

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // They need a vLLM and minutes: scripts/test-vllm.sh sets both up.
    exclude: process.env.DAWN_RL_VLLM ? [] : ['test/vllm/**'],
    pool: 'forks',
    fileParallelism: workers > 1,
    maxWorkers: workers,
    testTimeout: 600_000,
    hookTimeout: 600_000,
  },
})
