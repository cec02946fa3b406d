import { defineConfig } from 'vitest/config'

// One GPU device a test file, and a software adapter uses every core by itself: files run one after another, in forked processes,
// because a process must be able to end although Dawn holds threads. The limits are long: a driver that has compiled no kernel yet needs minutes.
export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // They need a vLLM and minutes: scripts/test-vllm.sh sets both up.
    exclude: process.env.DAWN_RL_VLLM ? [] : ['test/vllm/**'],
    pool: 'forks',
    fileParallelism: false,
    testTimeout: 600_000,
    hookTimeout: 600_000,
  },
})
