/**
 * The estimate of `--dry-run` against what a run holds on a CPU driver, staging textures included. Seen: of SmolLM2-135M (8 completions of 128 tokens,
 * micro-batches of 256 to 1,024 tokens; measured once by hand with `measureRun`, as it takes minutes) 431 MiB for 431 and 574 for 574 with LoRA, 876 for 824
 * without gradient checkpointing, 2,446 for 2,456 with all weights; of models of 1 M weights from 8% below to 20% above, where staging textures weigh more.
 * Kernels do nothing here: what is held follows from sizes alone, as the test before the last function checks.
 */
import { describe, expect, test } from 'vitest'
import { headChunkRows } from '../../src/autograd/ops/head.ts'
import { parseConfig } from '../../src/config/load.ts'
import { headRows, memoryOf } from '../../src/config/memory.ts'
import type { RunConfig } from '../../src/config/schema.ts'
import { hashSeed, Random } from '../../src/common/random.ts'
import { decodeSplits } from '../../src/kernels/attention/attention.ts'
import type { ModelTensors } from '../../src/model/decoder/load.ts'
import { madeTensors } from '../../src/model/decoder/shapes.ts'
import type { ModelConfig } from '../../src/model/types.ts'
import { newModel } from '../../src/trainer/new-model.ts'
import { withFacts } from '../facts.ts'
import { freshGpu } from '../gpu/fresh.ts'
import { measureRun } from './measure.ts'

const model = newModel(
  {
    family: 'qwen3', hidden_size: 128, intermediate_size: 384, num_hidden_layers: 5, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 32,
    tie_word_embeddings: true, rope_theta: 10000, rms_norm_eps: 1e-6, max_position_embeddings: 512, initializer_range: 0.02,
  },
  1,
) // prettier-ignore

/** The same with Gated DeltaNets, their states as large beside the model as Qwen3.5's. */
const delta: ModelConfig = {
  ...model.config,
  family: 'qwen3_5_text',
  layers: 4,
  qwen35: { deltaLayers: [0, 1, 2], keyHeads: 4, valueHeads: 4, keyDim: 32, valueDim: 32, taps: 4 },
  rotaryDim: 8,
}
/** The same with gated convolutions; deeper, since they are small beside the staging textures. */
const short: ModelConfig = { ...model.config, family: 'lfm2', layers: 7, shortConv: { layers: [0, 1, 3, 4, 6], taps: 3 } }
const withDeltas = filled(delta)
const withConvolutions = filled(short)
/** As OLMo 2 has its norms. */
const normsAfter = filled({ ...model.config, family: 'olmo2', norms: 'after', qkNormWhole: true })

function filled(shape: ModelConfig): ModelTensors {
  const tensors = madeTensors(shape, (name, sizes) => {
    const random = new Random(hashSeed('states', name))
    const data = Float32Array.from({ length: sizes.reduce((a, b) => a * b, 1) }, () => random.normal() * 0.02)
    return { dtype: 'f32', shape: sizes, data }
  })
  return { ...model, config: shape, tensors }
}
/** With gate and up in one matrix, and factors (Granite 4). */
const withFused = filled({
  ...model.config,
  family: 'granitemoehybrid',
  qkNorm: false,
  fused: ['gate_up_proj'],
  residualScale: 0.3,
  logitsScaling: 2,
})
/** With q, k and v in one matrix, too, and a part of a head rotated (Phi-4-mini). */
const withMoreFused = filled({
  ...model.config,
  family: 'phi3',
  qkNorm: false,
  fused: ['qkv_proj', 'gate_up_proj'],
  rotaryDim: (model.config.headDim / 4) * 3,
})

const config = (args: string) =>
  parseConfig(
    `model = "x"\n[env]\nid = "reverse-text"\n[inference]\nmax_num_seqs = 16\n[trainer.args]\nmax_seq_len = 128\nbatch_size = 32\nrollouts_per_example = 8\nmicro_batch_tokens = 1024\n${args}`,
  ).config

test('rows of the head as the trainer takes them', () => {
  for (const vocabulary of [262, 32000, 49152, 151936, 262144]) expect(headRows(vocabulary)).toBe(headChunkRows(vocabulary))
})

test('partial outputs of decoding as the engine takes them on a GPU', async () => {
  const gpu = await freshGpu()
  const { maxBinding } = gpu.facts.limits
  const pages = { pages: undefined as never, size: 16, f16: false, prompts: false }
  await withFacts(gpu, { software: false }, async () => {
    for (const [heads, kvHeads, headDim] of [
      [32, 8, 128],
      [4, 2, 32],
      [14, 2, 64],
      [9, 3, 64],
      [40, 40, 128],
    ])
      // prettier-ignore
      for (const longest of [256, 257, 4096, 131_072])
        for (const sequences of [1, 60, 64, 600]) {
          const taken = Array.from({ length: sequences }, (_, i) => {
            const splits = decodeSplits(gpu, i + 1, { heads, kvHeads, headDim }, { ...pages, longest })
            return splits > 1 ? 4 * (i + 1) * heads * splits * (headDim + 2) : 0
          })
          const run = parseConfig(`model = "x"\n[env]\nid = "reverse-text"\n[inference]\nmax_num_seqs = ${sequences}`).config
          run.trainer.args.max_seq_len = longest
          const [onCpu, onGpu] = [true, false].map((software) => {
            const limits = { maxStorageBufferBindingSize: maxBinding, maxBufferSize: maxBinding, software }
            const rows = memoryOf(run, { config: { ...model.config, heads, kvHeads, headDim } }, limits)
            return rows.find(({ name }) => name === 'decoding')!.bytes
          })
          expect(onGpu - onCpu, `${sequences} x ${longest}, ${heads} heads`).toBe(Math.max(...taken))
        }
  })
})

describe('within a quarter of the truth', () => {
  test.each([
    ['LoRA', 'lora_rank = 12'],
    ['LoRA, everything kept', 'gradient_checkpointing = false'],
    ['LoRA, attention kept', 'keep_attention = true'],
    ['LoRA with dropout, everything kept', 'lora_dropout = 0.1\ngradient_checkpointing = false'],
    ['LoRA, layers in 8 bits', 'quantization = "q8_0"'],
    ['full fine-tuning', 'use_lora = false'],
    ['full fine-tuning, moments in 8 bits', 'use_lora = false\noptim = "adamw_8bit"'],
    ['full fine-tuning in float32', 'use_lora = false\nbf16 = false'],
  ])('%s', async (_, args) => {
    await expectNear(model, config(args))
  })
  describe.each([
    ['Gated DeltaNets', withDeltas],
    ['gated convolutions', withConvolutions],
    ['norms after attention and MLP', normsAfter],
  ] as const)('with %s', (_, files) => {
    test.each([
      ['LoRA', `lora_rank = ${files === normsAfter ? 12 : 8}`],
      ['LoRA, everything kept', 'gradient_checkpointing = false'],
      ['full fine-tuning', 'use_lora = false'],
    ])('%s', async (__, args) => await expectNear(files, config(args)))
  })
  test.each([
    ['LoRA with dropout, everything kept', 'lora_rank = 32\nlora_dropout = 0.1\ngradient_checkpointing = false'],
    ['full fine-tuning', 'use_lora = false'],
  ])('with matrices of several projections: %s', async (_, args) => {
    for (const files of [withFused, withMoreFused]) await expectNear(files, config(args))
  })
})

test('kernels that compute hold as much as those that do nothing', async () => {
  const shape = { ...model.config, layers: 2, hiddenSize: 32, intermediateSize: 64, heads: 2, kvHeads: 1, headDim: 16 }
  const run = config('lora_rank = 4')
  run.trainer.args.max_seq_len = 32
  run.trainer.args.micro_batch_tokens = 64
  const [computing, idle] = [await measureRun(filled(shape), run), await measureRun(filled(shape), run, { idle: true })]
  expect(idle).toEqual(computing)
  expect(idle.peak).toBeGreaterThan(idle.resident)
})

async function expectNear(files: ModelTensors, run: RunConfig): Promise<void> {
  const estimate = memoryOf(run, files).reduce((sum, row) => sum + row.bytes, 0)
  const { peak, reserved } = await measureRun(files, run, { idle: true })
  for (const held of [peak, reserved]) {
    expect(estimate / held).toBeGreaterThan(0.8)
    expect(estimate / held).toBeLessThan(1.25)
  }
}
