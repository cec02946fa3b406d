/** A reference model that is moved on: what it is after a move, what a checkpoint keeps of it, and what comes back. */
import { existsSync, fstatSync, mkdirSync, mkdtempSync, readdirSync, statSync } from 'node:fs'
import { open as openFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, onTestFinished, test, vi } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { loadDecoder, type LoadOptions } from '../../src/model/decoder/load.ts'
import type { Decoder } from '../../src/model/decoder/decoder.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import { loadCheckpoint, saveCheckpoint } from '../../src/trainer/checkpoint.ts'
import { scoreSamples } from '../../src/trainer/gradients.ts'
import { loadReference } from '../../src/trainer/reference.ts'
import { ReferenceSync } from '../../src/trainer/reference-sync.ts'
import type { Trainer } from '../../src/trainer/trainer.ts'
import { freshLora, goldenPath, loraConfig, openCase, openGpu, tempFolder, trainerOptions, withTrainer } from './helpers.ts'

const { gpu } = openGpu()
const folder = tempFolder()

const ways: Record<string, () => Promise<LoadOptions>> = {
  'a fresh adapter': async () => freshLora(),
  'an adapter to go on from': async () => ({ adapter: await readAdapter(goldenPath('qwen3', 'adapter')) }),
  'every weight, in float32': async () => ({ full: true }),
  'every weight, in bf16': async () => ({ full: true, round: true }),
}

/** A policy, its reference and a run's folder. */
async function open(options: LoadOptions, every = 2, moves = every > 0) {
  const { files, batch, settings } = await openCase('qwen3')
  const decoder = await loadDecoder(await gpu, files, options)
  const reference = await loadReference(decoder, files, options, moves)
  const runFolder = mkdtempSync(join(folder, 'run-'))
  const about = {
    lora: options.full ? undefined : (options.adapter?.config ?? loraConfig),
    rawConfig: files.rawConfig(),
    rawGenerationConfig: files.rawGenerationConfig,
  }
  const sync = new ReferenceSync({ policy: decoder, reference, about, runFolder, every })
  const schedule = { type: 'constant' as const, learningRate: 3e-3, warmupSteps: 0, maxSteps: 9 }
  const all = { ...(await trainerOptions(runFolder)), schedule, reference, beta: 0.1 }
  /** Trains a step as a run does. @returns how far the policy is from the reference */
  const step = async (trainer: Trainer) => {
    if (sync.isDue(trainer.step)) await sync.follow()
    const samples = batch.samples.map((sample) => ({ ...sample }))
    return (await trainer.trainStep({ ...batch, samples, step: trainer.step + 1 })).metrics['ref_kl/all/mean']!
  }
  const score = async (which: Decoder) => {
    const work = { temperature: settings.temperature, microBatchTokens: 64 }
    return (await scoreSamples(which, batch.samples, work)).map(({ logprobs }) => logprobs)
  }
  const release = async () => {
    // Copies of weights that no step has sent yet.
    await (await gpu).sync('release')
    reference.release()
    decoder.release()
  }
  return { decoder, reference, runFolder, about, sync, options: all, step, score, release }
}

test('moves between a step and the next, never before the first one, and not at all at 0', async () => {
  const { sync, release } = await open(freshLora(), 3)
  expect([0, 1, 2, 3, 4, 5, 6].filter((step) => sync.isDue(step))).toEqual([3, 6])
  await release()
  const still = await open(freshLora(), 0)
  expect([0, 1, 2, 3].some((step) => still.sync.isDue(step))).toBe(false)
  await still.release()
})

describe.each(Object.keys(ways))('%s', (way) => {
  test('is the policy of that step, to the bit; a checkpoint brings it back; no memory is held', async () => {
    const start = (await gpu).pool.bytesInUse
    const first = await open(await ways[way]())
    const root = join(first.runFolder, 'checkpoints')
    mkdirSync(root)
    const kl: number[] = []
    const save = (trainer: Trainer) =>
      saveCheckpoint(root, trainer, first.about, { keep: { last: 9 }, fill: (aside) => first.sync.saveTo(aside) })
    const atStart = await first.score(first.reference)
    let atTwo: Float32Array[] = []
    await withTrainer(first.decoder, first.options, async (trainer) => {
      for (let step = 1; step <= 4; step++) {
        if (step === 3) atTwo = await first.score(first.decoder)
        kl.push(await first.step(trainer))
        await save(trainer)
      }
    })
    expect(await first.score(first.reference)).toEqual(atTwo)
    expect(atTwo).not.toEqual(atStart)
    // 0 where the policy stands on it: at the first step and after the move.
    expect(kl.map((value) => value > 0)).toEqual([false, true, false, true])
    expect([1, 2, 3, 4].map((step) => existsSync(join(root, `step_${step}`, 'reference')))).toEqual([false, false, true, true])
    expect(readdirSync(first.runFolder).toSorted()).toEqual(['checkpoints', 'reference'])
    // Checkpoints between two moves hold the same files once.
    const file = readdirSync(join(root, 'step_3/reference')).find((name) => name.endsWith('.safetensors'))!
    const inodes = ['step_3/reference', 'step_4/reference', '../reference'].map((at) => statSync(join(root, at, file)).ino)
    expect(new Set(inodes).size).toBe(1)
    await first.release()

    // Each checkpoint goes on as the run went.
    for (const from of [2, 3]) {
      const second = await open(await ways[way]())
      await withTrainer(second.decoder, second.options, async (trainer) => {
        const dir = join(root, `step_${from}`)
        await loadCheckpoint(dir, trainer, second.about)
        await second.sync.restore(dir)
        for (let step = from + 1; step <= 4; step++) expect(await second.step(trainer)).toBe(kl[step - 1])
        expect(await second.score(second.reference)).toEqual(atTwo)
        // Back to before the move.
        await second.sync.restore(join(root, 'step_1'))
        expect(existsSync(join(second.runFolder, 'reference'))).toBe(false)
      })
      await second.release()
    }
    expect((await gpu).pool.bytesInUse).toBe(start)
  })
})

// Windows cannot open a folder.
test.skipIf(process.platform === 'win32')(
  'a checkpoint of it is whole only when the disk has its files and their names',
  async () => {
    const { sync, runFolder, release } = await open(freshLora())
    await sync.follow()
    const handle = await openFile(runFolder)
    const prototype = Object.getPrototypeOf(handle) as typeof handle
    await handle.close()
    const synced: number[] = []
    const spy = vi.spyOn(prototype, 'sync').mockImplementation(function (this: typeof handle) {
      synced.push(fstatSync(this.fd).ino)
      return Promise.resolve()
    })
    onTestFinished(() => spy.mockRestore())
    const checkpoint = join(runFolder, 'step_2')
    mkdirSync(checkpoint)
    await sync.saveTo(checkpoint)
    expect(synced).toEqual([statSync(join(checkpoint, 'reference')).ino])
    await release()
  },
)

test('a run whose reference has no weights of its own does not take over one that was moved', async () => {
  const moved = await open(freshLora())
  await moved.sync.follow()
  const checkpoint = join(moved.runFolder, 'step_2')
  mkdirSync(checkpoint)
  await moved.sync.saveTo(checkpoint)
  await moved.release()
  const { sync, release } = await open(freshLora(), 0)
  await expect(sync.restore(checkpoint)).rejects.toThrow(UserError)
  await expect(sync.restore(checkpoint)).rejects.toThrow(/was updated during training.*set trainer\.args\.ref_model_sync_steps/)
  await release()
})
