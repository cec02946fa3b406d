/** Steps ahead of the host in blocks: how often it waits, what closes a block early, and that nothing waits for one that stays open. */
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { engineOf, goldenDecoder, goldenSequences, sampling } from './helpers.ts'

const gpu = await Gpu.open({ checks: true })
let decoder: Decoder
beforeAll(async () => {
  decoder = await goldenDecoder(gpu, 'llama')
})
afterAll(() => {
  decoder.release()
  gpu.close()
})
const prompts = goldenSequences('llama').map((ids) => ids.slice(0, 9))

/** How often the host read from the device while `fn` ran. */
async function readsOf(fn: () => Promise<unknown>): Promise<number> {
  const read = vi.spyOn(gpu, 'read')
  await fn()
  const count = read.mock.calls.length
  read.mockRestore()
  return count
}

describe('blocks of steps', () => {
  it.each([
    { readBlock: 1, tokens: 21, reads: 21 },
    { readBlock: 4, tokens: 20, reads: 5 },
    { readBlock: 4, tokens: 21, reads: 6 },
    { readBlock: 8, tokens: 20, reads: 3 },
  ])('are read at once: %j', async ({ readBlock, tokens, reads }) => {
    const engine = engineOf(decoder, { ahead: true, readBlock })
    const request = { promptIds: prompts[0], sampling: sampling({ max_tokens: tokens, seed: 3 }) }
    let result
    expect(await readsOf(async () => (result = await engine.generate(request)))).toBe(reads)
    await engine.close()
    const inTurn = engineOf(decoder, { ahead: false })
    expect(result).toEqual(await inTurn.generate(request))
    await inTurn.close()
  })

  it('end with the first token of a stream and the last of a request', async () => {
    const engine = engineOf(decoder, { ahead: true, readBlock: 16 })
    const told: number[] = []
    const onToken = ({ id }: { id: number }) => told.push(id)
    const reads = await readsOf(async () => {
      const long = engine.generate({ promptIds: prompts[0], sampling: sampling({ max_tokens: 30 }), onToken })
      const short = engine.generate({ promptIds: prompts[1], sampling: sampling({ max_tokens: 4, seed: 1 }) })
      expect((await short).ids).toHaveLength(4)
      expect((await long).ids).toEqual(told)
    })
    // The first step, three more up to the end of the short one, sixteen, and the ten that are left.
    expect(reads).toBe(4)
    await engine.close()
  })

  it.each(['keep', 'wait', 'abort'] as const)('that are open do not hold up a pause (%s), nor the end', async (mode) => {
    const engine = engineOf(decoder, { ahead: true, readBlock: 1000 })
    const request = () => engine.generate({ promptIds: prompts[0], sampling: sampling({ max_tokens: 40 }) })
    const running = request()
    for (let turn = 0; turn < 6; turn++) await new Promise((resolve) => setImmediate(resolve))
    await engine.pause(mode)
    // Every step that was begun has landed.
    const { decodeSteps, running: left } = engine.stats()
    expect(decodeSteps).toBeGreaterThan(0)
    expect(left).toBe(mode === 'keep' ? 1 : 0)
    engine.resume()
    const { ids, finishReason } = await running
    expect(finishReason).toBe(mode === 'abort' ? 'abort' : 'length')
    if (mode !== 'abort') expect(ids).toHaveLength(40)
    const last = request()
    for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve))
    await Promise.all([expect(last).rejects.toThrow('closed'), engine.close()])
  })

  it('leave no step unread where a sequence lost its pages and waits for its tokens', async () => {
    const engine = engineOf(decoder, { ahead: true, readBlock: 1000, cacheRows: 40, maxLength: 40, pageSize: 4 })
    const results = await Promise.all(
      [26, 22, 30].map((max_tokens, seed) =>
        engine.generate({ promptIds: prompts[seed], sampling: sampling({ max_tokens, seed }) }),
      ),
    )
    expect(results.map(({ ids }) => ids.length)).toEqual([26, 22, 30])
    expect(engine.stats().preemptions).toBeGreaterThan(0)
    await engine.close()
  })
})
