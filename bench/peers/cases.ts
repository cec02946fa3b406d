/** Every case: what is run, against which peers, and its targets. */
import type { Job, Work } from './job.ts'
import type { Target } from './table.ts'

export type Peer = 'transformers' | 'vllm' | 'trl' | 'torchlette'

/** rows x k times k x columns: SmolLM2's up projection over 512 tokens. */
export const MATMUL = { rows: 512, k: 576, columns: 1536 }
/** torchlette's small training step: sequences x tokens. */
export const SMALL = { layers: 4, width: 128, heads: 4, vocabulary: 512, sequences: 64, tokens: 48 }

/** Rows of a micro-batch, as in a run with limited memory; for the tiny model half of a step, while TRL takes a whole one. */
export const MICRO_BATCH = 512
const HALF_STEP = 1024

/** One process for each contestant and round; it may give several figures. */
export interface Group {
  /** The name for --only. */
  name: string
  work: Work
  peers: readonly Peer[]
  model: 'smollm2' | 'tiny'
  /** Settings that differ from `defaults` in run.ts. */
  job: Partial<Job>
  /** The same with --quick. */
  quick: Partial<Job>
  /** Targets by the figure's name, for each peer. */
  targets: Record<string, Partial<Record<Peer, Target>>>
}

const speed = (unit: Target['unit'], at: number | null, memory: number | null = 0.35): Target => ({ unit, speed: at, memory })
// Batches 1 and 16 have no target.
const generation = (batch: number): Partial<Record<Peer, Target>> => ({
  transformers: speed('tokens/s', batch === 32 ? 1 : null),
  vllm: speed('tokens/s', batch === 32 ? 1 : null, null),
})
const rl = (work: Work, lora: boolean): Omit<Group, 'name'> => ({
  work,
  peers: ['trl'],
  model: work === 'rl smollm2' ? 'smollm2' : 'tiny',
  job:
    work === 'rl smollm2'
      ? { rollouts: 16, group: 4, tokens: 32, steps: 2, lora }
      : { rollouts: 64, group: 8, tokens: 24, steps: 5, lora, microBatch: HALF_STEP },
  quick: { steps: 1 },
  targets: { [work]: { trl: speed('s', 1) } },
})

export const GROUPS: readonly Group[] = [
  {
    name: 'generate',
    work: 'generate',
    peers: ['transformers', 'vllm'],
    model: 'smollm2',
    job: { batches: [1, 16, 32], tokens: 64, repeats: 1 },
    quick: { tokens: 16 },
    targets: { 'generate 1': generation(1), 'generate 16': generation(16), 'generate 32': generation(32) },
  },
  {
    name: 'score',
    work: 'score',
    peers: ['transformers'],
    model: 'smollm2',
    job: { repeats: 1 },
    quick: {},
    targets: { score: { transformers: speed('tokens/s', 0.3) } },
  },
  {
    name: 'lora',
    work: 'lora step',
    peers: ['transformers'],
    model: 'smollm2',
    job: { repeats: 1 },
    quick: {},
    targets: { 'lora step': { transformers: speed('tokens/s', 0.4) } },
  },
  { name: 'rl', ...rl('rl smollm2', true) },
  { name: 'rl-tiny-lora', ...rl('rl tiny lora', true) },
  { name: 'rl-tiny-full', ...rl('rl tiny full', false) },
  {
    name: 'matmul',
    work: 'matmul',
    peers: ['torchlette'],
    model: 'tiny',
    job: { repeats: 3 },
    quick: { repeats: 1 },
    targets: { matmul: { torchlette: speed('GFLOP/s', 20, null) } },
  },
  {
    name: 'small-step',
    work: 'small step',
    peers: ['torchlette'],
    model: 'tiny',
    job: { repeats: 1 },
    quick: {},
    targets: { 'small step': { torchlette: speed('s', 20, null) } },
  },
]
