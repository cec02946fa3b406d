import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { defineConfig } from 'vitest/config'

// One GPU device a test file. Two files run at a time, in forked processes, because a process must be able to end although Dawn holds threads: a software
// adapter uses every core by itself, but much of the time one file compiles kernels or waits for a child. DAWN_RL_TEST_WORKERS says another number.
// The limits are long: a driver that has compiled no kernel yet needs minutes.
const workers = Number(process.env.DAWN_RL_TEST_WORKERS ?? Math.min(2, availableParallelism()))

// On CI a test that failed is run once more, and .ci/run says at its end which needed it: hundreds of tests run real servers, terminals and children on a
// machine that others keep busy. Elsewhere the first failure stands, so that a flaw that shows itself now and then is seen where it can be mended.
const retry = process.env.CI ? 1 : 0

// Models with heads of 64 or 128 channels run on a software driver's subgroups of 16 where the CPU has such vectors (src/gpu/vector-width.ts), and a user may ask for them; on other adapters the variable says nothing.
const kernelsOfLanes = [
  'attention',
  'head',
  'matmul-cpu',
  'group',
  'lora',
  'lora-rows',
  'kv-texture',
  'norm-rope',
  'sampling',
  'lanes',
  'quantised',
  'joint',
  'optimizer',
].map((name) => `test/kernels/${name}.test.ts`)

export default defineConfig({
  // As src/environments/load.ts points it, which Vite does not ask.
  resolve: { alias: { 'dawn-rl/environments': join(import.meta.dirname, 'src/environments/index.ts') } },
  test: {
    projects: [
      {
        extends: true,
        test: {
          name: 'all',
          include: ['test/**/*.test.ts'],
          // They need a vLLM and minutes: scripts/test-vllm.sh sets both up.
          exclude: process.env.DAWN_RL_VLLM ? [] : ['test/vllm/**'],
        },
      },
      {
        extends: true,
        test: {
          name: '16 lanes',
          include: [...kernelsOfLanes, 'test/inference/engine.test.ts', 'test/golden/smollm2.test.ts'],
          env: { LP_NATIVE_VECTOR_WIDTH: '512', DAWN_RL_TEST_MODES: 'own' },
        },
      },
    ],
    // For the commands that tests start: what cli.js keeps in the user's cache.
    env: { NODE_COMPILE_CACHE: join(import.meta.dirname, 'node_modules/.cache/node') },
    retry,
    pool: 'forks',
    fileParallelism: workers > 1,
    maxWorkers: workers,
    testTimeout: 600_000,
    hookTimeout: 600_000,
  },
})
