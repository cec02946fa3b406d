/** A GPU without enough memory: smaller micro-batches with the same gradient, and words where there are none. */
import { expect, test, vi } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { GpuMemoryError } from '../../src/gpu/errors.ts'
import { Gpu } from '../../src/gpu/gpu.ts'
import { packedBatches, untrained } from '../../src/model/decoder/packed.ts'
import { Fitting } from '../../src/trainer/fitting.ts'
import { MicroBatchRunner, type Work } from '../../src/trainer/micro-batch.ts'
import { loadLoss } from '../../src/trainer/losses/index.ts'
import { meanLoss } from '../../src/trainer/sft.ts'
import {
  batchOf,
  bounds,
  loadCase,
  openCase,
  openGpu,
  readAll,
  tempFolder,
  trainerOptions,
  withTrainer,
  worst,
} from './helpers.ts'

const folder = tempFolder()

const opened = openGpu()

/** A step of a fresh adapter on a batch of some hundred rows, and another one where something was said. */
async function step(microBatchTokens: number, options: { limitBytes?: number; host?: boolean; maxBinding?: number } = {}) {
  const gpu = await opened.gpu
  const decoder = await loadCase(gpu, 'qwen3', 'adapter')
  const { limits } = gpu.facts
  const { maxBinding } = limits
  try {
    const { batch } = await openCase('qwen3')
    // Copies of the prompts under other names, so that they share no rows.
    const samples = Array.from({ length: 4 }, (_, i) =>
      batch.samples.map((sample) => ({ ...sample, promptKey: sample.promptKey && `${i} ${sample.promptKey}` })),
    ).flat()
    const said: string[] = []
    const own = { ...(await trainerOptions(folder)), microBatchTokens }
    const loss = options.host ? await loadLoss('./configs/losses/ppo-clip.ts', bounds) : own.loss
    return await withTrainer(decoder, { ...own, loss }, async (trainer) => {
      gpu.pool.trim()
      gpu.pool.peakBytes = gpu.pool.bytesInUse
      if (options.limitBytes) gpu.pool.limitBytes = options.limitBytes
      if (options.maxBinding) limits.maxBinding = options.maxBinding
      const again = async () => (await trainer.trainStep(batchOf(samples), { warn: (line) => said.push(line) })).metrics
      const metrics = await again()
      const gradients = await readAll(decoder, 'gradients')
      if (said.length > 0) await again()
      return { metrics, gradients, said, tokens: trainer.fitting.size.microBatchTokens, peak: gpu.pool.peakBytes }
    })
  } finally {
    gpu.pool.limitBytes = Infinity
    limits.maxBinding = maxBinding
    decoder.release()
  }
}

test('a step that does not fit is made in smaller micro-batches: the same gradient, said once, kept', async () => {
  for (const host of [false, true]) {
    const large = await step(512, { host })
    const small = await step(128, { host })
    expect(large.said).toEqual([])
    expect(small.peak).toBeLessThan(large.peak * 0.8)
    const limitBytes = Math.ceil((small.peak + large.peak) / 2)
    const limited = await step(512, { host, limitBytes })
    expect(limited.tokens).toBeLessThan(512)
    expect(limited.peak).toBeLessThanOrEqual(limitBytes)
    expect(limited.said).toHaveLength(1)
    expect(limited.said[0]).toMatch(/'.+' needs .+ MiB of GPU memory, but .+ of the .+ that the run may use are taken/)
    expect(limited.said[0]).toContain(`trainer.args.micro_batch_tokens = ${limited.tokens}.`)
    expect(worst(limited.gradients, large.gradients).distance).toBeLessThan(1e-5)
    expect(limited.metrics['loss/mean']).toBeCloseTo(large.metrics['loss/mean']!, 6)
    // What fits is what it would be if it had been asked for.
    const asked = await step(limited.tokens, { host })
    expect(limited.gradients).toEqual(asked.gradients)
  }
})

test('so is one whose activations are more than the adapter binds at once', async () => {
  const large = await step(512)
  const bound = await step(512, { maxBinding: 300_000 })
  expect(bound.tokens).toBeLessThan(large.tokens)
  expect(bound.said).toHaveLength(1)
  expect(bound.said[0]).toMatch(/^'.+' needs .+ MiB in one piece, and this adapter binds at most 0\.2861 MiB: /)
  expect(bound.said[0]).toContain(`trainer.args.micro_batch_tokens = ${bound.tokens}.`)
  expect(worst(bound.gradients, large.gradients).distance).toBeLessThan(1e-5)
})

test('so is the loss of held-out examples, before the first step', async () => {
  const gpu = await opened.gpu
  const decoder = await loadCase(gpu, 'qwen3', 'adapter')
  const { limits } = gpu.facts
  const { maxBinding } = limits
  const { batch } = await openCase('qwen3')
  const samples = [0, 1, 2, 3].flatMap(() => batch.samples.map((sample) => ({ ...sample, promptKey: undefined })))
  const said: string[] = []
  await withTrainer(decoder, { ...(await trainerOptions(folder)), microBatchTokens: 512 }, async (trainer) => {
    const large = await meanLoss(trainer, samples)
    trainer.fitting.size.runner.release()
    limits.maxBinding = 300_000
    expect(await meanLoss(trainer, samples, (line) => said.push(line))).toBeCloseTo(large, 5)
    expect(trainer.fitting.size.microBatchTokens).toBeLessThan(512)
    limits.maxBinding = maxBinding
  })
  expect(said).toEqual([expect.stringContaining('in one piece')])
  decoder.release()
})

test('where not even the smallest fits: what to lower', async () => {
  const { peak } = await step(64)
  const failed = step(512, { limitBytes: Math.floor(peak * 0.7) })
  await expect(failed).rejects.toThrow(UserError)
  await expect(failed).rejects.toThrow(
    /^Step 1 does not fit into memory: .+ micro-batches are already as small as they can be \(\d+ tokens\)\. Lower /,
  )
})

test('two sequences may be divided, but not one, nor those for which there is always room', async () => {
  const decoder = await loadCase(await opened.gpu, 'qwen3', 'adapter')
  const fit = async (...lengths: number[]) => {
    const fitting = new Fitting(decoder, { microBatchTokens: 4096 })
    const samples = lengths.map((length) => untrained(new Int32Array(length)))
    let tries = 0
    const work = async () => {
      if (tries++ === 0) throw new GpuMemoryError('too much')
      return fitting.size.microBatchTokens
    }
    return await fitting.run(batchOf(samples), work).finally(() => fitting.release())
  }
  expect(await fit(50, 50)).toBe(49)
  await expect(fit(100)).rejects.toThrow('as small as they can be (99 tokens)')
  await expect(fit(33, 33)).rejects.toThrow('as small as they can be (64 tokens)')
  expect(await fit(33, 34)).toBe(32)
  decoder.release()
})

test('an error that the device reported late is not tried again in smaller ones: it has damaged more than this step', async () => {
  const gpu = await opened.gpu
  const decoder = await loadCase(gpu, 'qwen3', 'adapter')
  const { batch } = await openCase('qwen3')
  const fitting = new Fitting(decoder, { microBatchTokens: 512 })
  const late = new GpuMemoryError('the GPU is out of memory')
  const failure = vi.spyOn(gpu, 'failure', 'get').mockReturnValue(late)
  await expect(fitting.run(batch, () => Promise.reject(late))).rejects.toBe(late)
  failure.mockRestore()
  expect(fitting.size.microBatchTokens).toBe(512)
  fitting.release()
  decoder.release()
})

test('a micro-batch whose buffers find no room holds none of them', async () => {
  const gpu = await opened.gpu
  const decoder = await loadCase(gpu, 'qwen3', 'full')
  const { batch } = await openCase('qwen3')
  const batches = packedBatches(decoder.config, batch.samples, 512, 'all')
  const runner = new MicroBatchRunner(decoder, { rowsAtMost: 512 })
  const work: Work = { kind: 'score', temperature: 1, checkpointing: false }
  // What the decoder keeps, such as its rotary table, is made by the first one.
  await runner.makeRoom(batches, work)
  runner.release()
  const missing = new Set<string>()
  for (let more = 0; ; more += 1024) {
    gpu.pool.trim()
    const held = gpu.pool.bytesInUse
    gpu.pool.limitBytes = gpu.pool.bytesReserved + more
    const error = await runner.makeRoom(batches, work).then(
      () => undefined,
      (thrown: unknown) => thrown as Error,
    )
    gpu.pool.limitBytes = Infinity
    if (!error) break
    expect(error).toBeInstanceOf(GpuMemoryError)
    expect(gpu.pool.bytesInUse, error.message).toBe(held)
    missing.add(/'(.*)'/.exec(error.message)![1])
  }
  expect([...missing]).toEqual(expect.arrayContaining(['key ends', 'advantages', 'loss gradient']))
  runner.release()
  decoder.release()
})

test('between two steps the plans of the trainer give way to who needs the room, and are made again', async () => {
  const gpu = await opened.gpu
  const decoder = await loadCase(gpu, 'qwen3', 'adapter')
  const { batch } = await openCase('qwen3')
  await withTrainer(decoder, await trainerOptions(folder), async (trainer) => {
    const first = await trainer.trainStep(batch)
    gpu.pool.trim()
    const held = gpu.pool.bytesReserved
    gpu.pool.limitBytes = held + 1000
    const other = gpu.pool.acquire(4000, 'a step of the engine', { exact: true })
    expect(gpu.pool.bytesReserved).toBeLessThan(held)
    other.release()
    const second = await trainer.trainStep({ ...batch, step: 2 })
    expect([first.skipped, second.skipped]).toEqual([false, false])
    gpu.pool.limitBytes = Infinity
  })
  decoder.release()
})

test('the limit counts what is held, and takes back what nobody holds', async () => {
  const gpu = await Gpu.open({ checks: true })
  gpu.pool.limitBytes = 1 << 20
  const one = gpu.pool.acquire(600_000, 'one')
  one.release()
  // Its place is needed for one of another size.
  const two = gpu.pool.acquire(900_000, 'two')
  expect(() => gpu.pool.acquire(200_000, 'three')).toThrow(GpuMemoryError)
  two.release()
  gpu.pool.acquire(200_000, 'three').release()
  expect(gpu.pool.bytesReserved).toBeLessThanOrEqual(1 << 20)
  gpu.close()
})
