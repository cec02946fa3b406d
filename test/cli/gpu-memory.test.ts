/** Where the size of an adapter's memory comes from. The tools of real GPUs are not here: their words are. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { totalmem, tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { adapterWords, amdRoom, nvidiaRoom, roomOf, withMicroBatch } from '../../src/cli/gpu-memory.ts'
import { UserError } from '../../src/common/errors.ts'
import { parseConfig, type Resume } from '../../src/config/load.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { listAdapters } from '../../src/gpu/inventory.ts'
import { stringifyConfig } from '../../src/config/toml-write.ts'
import { newModel } from '../../src/trainer/new-model.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-memory-'))
afterAll(() => rmSync(folder, { recursive: true }))

test('a software adapter computes in the memory of the system', () => {
  const room = roomOf({ name: 'llvmpipe', device: 'llvmpipe', vendor: 'mesa', software: true })!
  expect(room.from).toBe('free memory of the system')
  expect(room.bytes).toBeGreaterThan(2 ** 28)
  expect(room.bytes).toBeLessThanOrEqual(totalmem())
})

test('Apple shares its memory with the GPU: two thirds of it; nothing is said of a GPU that no tool tells of', () => {
  const adapter = { name: 'Apple M2', device: 'apple-m2', vendor: 'apple', software: false }
  expect(roomOf(adapter)).toEqual({ bytes: (totalmem() * 2) / 3, from: 'two thirds of the memory of the system' })
  expect(roomOf({ ...adapter, name: 'Arc', vendor: 'intel' })).toBeUndefined()
})

test('an adapter goes by the name of its GPU: many drivers tell their own name and version for it', async () => {
  const gpu = await Gpu.open()
  const name = (await listAdapters())[0].name
  expect(adapterWords(gpu).device).toBe(name.replaceAll(/[^a-z0-9]+/gi, '-').toLowerCase())
  gpu.close()
})

test('nvidia-smi: the GPU of this name, of two of one name the fuller one', () => {
  const lines = 'NVIDIA GeForce RTX 4090, 23028\nNVIDIA A2, 15000\nNVIDIA GeForce RTX 4090, 21000\n'
  expect(nvidiaRoom(lines, 'nvidia-a2')).toEqual({ bytes: 15000 * 2 ** 20, from: 'nvidia-smi' })
  expect(nvidiaRoom(lines, 'nvidia-geforce-rtx-4090')?.bytes).toBe(21000 * 2 ** 20)
  expect(nvidiaRoom(lines, 'another-name')?.bytes).toBe(15000 * 2 ** 20)
  expect(nvidiaRoom('No devices were found\n', 'x')).toBeUndefined()
})

test('amdgpu: total less used of its cards', () => {
  expect(amdRoom(join(folder, 'none'))).toBeUndefined()
  const card = (name: string, files: Record<string, number>) => {
    mkdirSync(join(folder, name, 'device'), { recursive: true })
    for (const [file, value] of Object.entries(files)) writeFileSync(join(folder, name, 'device', file), `${value}\n`)
  }
  card('card0', {})
  card('card1-DP-1', { mem_info_vram_total: 9, mem_info_vram_used: 1 })
  expect(amdRoom(folder)).toBeUndefined()
  card('card1', { mem_info_vram_total: 16 * 2 ** 30, mem_info_vram_used: 2 ** 30 })
  expect(amdRoom(folder)).toEqual({ bytes: 15 * 2 ** 30, from: 'the amdgpu driver' })
})

const model = newModel(
  {
    family: 'qwen3', hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16,
    tie_word_embeddings: true, rope_theta: 10000, rms_norm_eps: 1e-6, max_position_embeddings: 128, initializer_range: 0.1,
  },
  7,
) // prettier-ignore
const load = (args: string) => parseConfig(`model = "x"\n[env]\nid = "reverse-text"\n[trainer.args]\nmax_seq_len = 64\n${args}`)
const limits = { maxStorageBufferBindingSize: 2 ** 30, maxBufferSize: 2 ** 30 }
const strange = { name: 'Strange GPU', device: 'strange-gpu', vendor: 'nobody', software: false, limits }

test('where nothing tells, the key is asked for; where it is set, it counts', () => {
  expect(() => withMicroBatch(load('micro_batch_tokens = "auto"'), model, strange)).toThrow(
    /how much memory Strange GPU has\. Set trainer\.args\.gpu_memory/,
  )
  const { config, line } = withMicroBatch(load('micro_batch_tokens = "auto"\ngpu_memory = 0.05'), model, strange)
  expect(config.trainer.args.micro_batch_tokens).toBeLessThan(32768)
  expect(line).toContain('of 51.2 MiB (trainer.args.gpu_memory)')
  const plain = load('micro_batch_tokens = 512')
  expect(withMicroBatch(plain, model, strange)).toEqual({ config: plain.config })
})

test('a run that goes on keeps the number it was started with; a machine that cannot hold it is told so', () => {
  const args = (gib: number, more = '') =>
    `micro_batch_tokens = "auto"\ngpu_memory = ${gib}\noutput_dir = ${JSON.stringify(folder)}\nrun_name = "kept"\n${more}`
  const sized = (gib: number, resume?: Resume, more?: string, of = strange) =>
    withMicroBatch({ ...load(args(gib, more)), ...(resume && { resume }) }, model, of)
  const started = sized(0.05)
  const { micro_batch_tokens: tokens } = started.config.trainer.args
  // With more room another run takes more, and this one what it had.
  expect(sized(5).config.trainer.args.micro_batch_tokens).toBeGreaterThan(tokens)
  mkdirSync(join(folder, 'kept'))
  writeFileSync(join(folder, 'kept/config.toml'), stringifyConfig(started.config))
  for (const resume of [{ kind: 'latest' }, { kind: 'step', step: 3 }, { kind: 'dir', dir: join(folder, 'kept') }] as const) {
    const again = sized(5, resume)
    expect(again.config.trainer.args).toMatchObject({ micro_batch_tokens: tokens, micro_batch_size: Math.floor(tokens / 64) })
    expect(again.line).toBe(
      `micro_batch_tokens = ${tokens} ("auto"): as when the run was started, so that its numbers stay the same`,
    )
  }
  // A little less room than at the start is none of the run's concern, where it still fits.
  expect(sized(0.045, { kind: 'latest' }).config.trainer.args.micro_batch_tokens).toBe(tokens)
  const words = (of: () => unknown): string => {
    try {
      of()
    } catch (error) {
      expect(error).toBeInstanceOf(UserError)
      return String(error)
    }
    throw new Error('nothing was refused')
  }
  expect(words(() => sized(0.01, { kind: 'latest' }))).toMatch(
    new RegExp(
      `The run was started with micro_batch_tokens = ${tokens} \\(by "auto"\\), which this machine cannot hold: about .* are needed, but only 10.2 MiB are there \\(trainer.args.gpu_memory\\)\\. Free some memory, or set a smaller`,
    ),
  )
  const narrow = { ...strange, limits: { ...limits, maxBufferSize: 4 * 64 * tokens - 1 } }
  expect(words(() => sized(5, { kind: 'latest' }, '', narrow))).toContain('is more than the adapter binds at once')
  const longer = () => {
    const { config } = load(args(5))
    const changed = { ...config, trainer: { ...config.trainer, args: { ...config.trainer.args, max_seq_len: 2 * tokens } } }
    return withMicroBatch({ ...load(args(5)), config: changed, resume: { kind: 'latest' } }, model, strange)
  }
  // Longer sequences than the number has room for, and a run that ended before it wrote a config: as at a start.
  expect(longer().config.trainer.args.micro_batch_tokens).not.toBe(tokens)
  rmSync(join(folder, 'kept/config.toml'))
  expect(sized(5, { kind: 'latest' }).config.trainer.args.micro_batch_tokens).toBe(
    sized(5).config.trainer.args.micro_batch_tokens,
  )
})
