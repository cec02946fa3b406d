/** Steps as plans: the same bits as steps that are recorded anew, and nothing made once they are warm. */
import { afterAll, describe, expect, it } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { engineOf, goldenDecoder, goldenSequences, sampling } from './helpers.ts'

const gpu = await Gpu.open({ checks: true })
afterAll(() => gpu.close())

const made = () => ({
  buffers: gpu.pool.buffersMade,
  read: gpu.readBuffersMade,
  groups: gpu.bindGroups,
  kernels: gpu.kernels.size,
  inUse: gpu.pool.bytesInUse,
})

describe('plans', () => {
  it.each(['llama', 'qwen3'])('give the bits of steps that are recorded anew: %s', async (name) => {
    const decoder = await goldenDecoder(gpu, name)
    const sequences = goldenSequences(name)
    // Lengths, penalties and filters differ, so the number of rows, drawn and padded, changes from step to step.
    const requests = Array.from({ length: 13 }, (_, i) => ({
      promptIds: sequences[i % 3].slice(0, 2 + 5 * (i % 4)),
      sampling: sampling({
        seed: i,
        max_tokens: 1 + ((5 * i) % 17),
        temperature: i % 5 === 0 ? 0 : 0.7,
        top_p: i % 3 === 0 ? 0.8 : 1,
        top_k: i % 4 === 1 ? 20 : 0,
        repetition_penalty: i === 11 ? 1.3 : 1,
      }),
    }))
    const results = []
    for (const way of [
      { plans: false, ahead: false },
      { plans: true, ahead: false },
      { plans: false, ahead: true },
      { plans: true, ahead: true },
      { plans: true, ahead: true, readBlock: 4 },
    ]) {
      const engine = engineOf(decoder, { maxSequences: 9, maxLength: 48, maxPrefillRows: 7, ...way })
      results.push(await Promise.all(requests.map((request) => engine.generate(request))))
      await engine.close()
    }
    for (const result of results.slice(1)) expect(result).toEqual(results[0])
    decoder.release()
  })

  it.each([{ ahead: false }, { ahead: true }, { ahead: true, readBlock: 4 }])(
    'make no buffer, bind group, pipeline or tensor in a decode step, and are one submit (%j)',
    async (way) => {
      const decoder = await goldenDecoder(gpu, 'llama')
      const engine = engineOf(decoder, way)
      const prompts = goldenSequences('llama').map((ids) => ids.slice(0, 9))
      const round = (seed: number) =>
        Promise.all(
          [...prompts, ...prompts].map((promptIds, i) =>
            engine.generate({ promptIds, sampling: sampling({ seed: seed + i, max_tokens: 30 }) }),
          ),
        )
      // Twice: the second time prompts are found in the cache, and other rows are copied.
      await round(0)
      await round(20)
      const generated = engine.stats().tokensGenerated
      const running = round(10)
      while (engine.stats().tokensGenerated < generated + 30) await new Promise((resolve) => setTimeout(resolve, 1))
      await engine.pause()
      const [before, submits, steps] = [made(), gpu.submits, engine.stats().decodeSteps]
      engine.resume()
      await running
      expect(made()).toEqual(before)
      expect(engine.stats().decodeSteps - steps).toBeGreaterThan(10)
      // A GPU gets a plan in several submits the first time (src/gpu/pace.ts).
      if (gpu.facts.software) expect(gpu.submits - submits).toBe(engine.stats().decodeSteps - steps)
      await engine.close()
      decoder.release()
    },
  )

  it('of steps of other sizes share bind groups', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const [promptIds] = goldenSequences('llama')
    const engine = engineOf(decoder, { maxSequences: 32, maxLength: 32, full: true })
    const run = (count: number, seed: number) =>
      Promise.all(
        Array.from({ length: count }, (_, i) =>
          engine.generate({
            promptIds: promptIds.slice(0, 3),
            sampling: sampling({ seed: seed + i, max_tokens: 4 + 2 * (i % 8) }),
          }),
        ),
      )
    await run(32, 0)
    const first = gpu.bindGroups
    for (const [i, count] of [24, 20, 12, 8, 5, 3, 1].entries()) await run(count, 100 * i)
    // The plans of a dozen sizes, each with as many commands as those that there were.
    expect(gpu.bindGroups).toBeLessThan(2 * first)
    await engine.close()
    decoder.release()
  })

  it('are made before any part of the step is sent, as a kernel that is made then waits for it', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = engineOf(decoder, { ahead: false })
    const [prompt] = goldenSequences('llama').map((ids) => ids.slice(0, 9))
    const together = (n: number) =>
      Promise.all(
        Array.from({ length: n }, (_, i) =>
          engine.generate({ promptIds: prompt, sampling: sampling({ seed: i, max_tokens: 3 }) }),
        ),
      )
    await together(1)
    const [submits, steps] = [gpu.submits, engine.stats().decodeSteps]
    // Numbers of draws that no step had before.
    for (const n of [5, 2, 3]) await together(n)
    expect(engine.stats().decodeSteps - steps).toBeGreaterThanOrEqual(9)
    if (gpu.facts.software) expect(gpu.submits - submits).toBe(engine.stats().decodeSteps - steps)
    await engine.close()
    decoder.release()
  })

  it('that no step needs yet may find no memory: those that run have theirs', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = engineOf(decoder)
    const [promptIds] = goldenSequences('llama').map((ids) => ids.slice(0, 9))
    const round = () => {
      engine.resetPrefixCache()
      return Promise.all(
        [6, 12].map((max_tokens) => engine.generate({ promptIds, sampling: sampling({ seed: max_tokens, max_tokens }) })),
      )
    }
    const first = await round()
    await gpu.sync()
    gpu.pool.trim()
    gpu.pool.limitBytes = gpu.pool.bytesReserved
    const again = await round().finally(() => (gpu.pool.limitBytes = Infinity))
    expect(again).toEqual(first)
    await engine.close()
    decoder.release()
  })

  it('are made anew where longer sequences made the rotary table longer', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = engineOf(decoder)
    const request = { promptIds: goldenSequences('llama')[0].slice(0, 9), sampling: sampling() }
    const first = await engine.generate(request)
    const table = decoder.rotary.table(64)
    expect(decoder.rotary.table(1000)).not.toBe(table)
    // What takes the old table's place must not be read.
    const poison = gpu.upload(new Float32Array(table.bytes / 4).fill(Number.NaN), 'poison')
    expect(poison.raw).toBe(table.raw)
    engine.resetPrefixCache()
    expect(await engine.generate(request)).toEqual(first)
    poison.release()
    await engine.close()
    decoder.release()
  })

  it('share their scratch: little more than that of the largest', async () => {
    const decoder = await goldenDecoder(gpu, 'llama')
    const engine = engineOf(decoder)
    const prompt = goldenSequences('llama')[2]
    const run = (length: number, count: number) =>
      Promise.all(
        Array.from({ length: count }, (_, seed) =>
          engine.generate({ promptIds: prompt.slice(0, length), sampling: sampling({ seed }) }),
        ),
      )
    await run(3, 1)
    const before = gpu.pool.bytesInUse
    for (const [length, count] of [
      [2, 2],
      [9, 5],
      [16, 7],
      [20, 8],
      [12, 1],
    ])
      await run(length, count)
    expect(gpu.pool.bytesInUse).toBeLessThan(before * 1.05)
    await engine.close()
    decoder.release()
  })
})
