/** How often a lost device is opened again, and what is said where that does not help. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test, vi } from 'vitest'
import { LostRun, outliveDevice } from '../../src/cli/train-again.ts'
import { AT } from '../../src/common/commands.ts'
import { parseConfig, parseSftConfig } from '../../src/config/load.ts'
import { DeviceLostError, GpuError } from '../../src/gpu/errors.ts'
import { shellWord } from '../../src/monitor/format.ts'
import { MetricsWriter } from '../../src/monitor/metrics-writer.ts'
import { openRunFolder } from '../../src/monitor/run-folder.ts'

const loaded = { ...parseConfig('model = "models/tiny"\nenv.id = "reverse-text"'), dryRun: false }
const pauses = { tries: 3, firstMs: 1, longestMs: 3 }
const lost = new DeviceLostError('the GPU device was lost (unknown): the driver restarted')

function runFolder() {
  const outputDir = mkdtempSync(join(tmpdir(), 'dawn-rl-again-'))
  onTestFinished(() => rmSync(outputDir, { recursive: true, force: true }))
  const folder = openRunFolder({ outputDir, runName: 'run', configText: '' })
  onTestFinished(() => folder.close())
  const metrics = new MetricsWriter({ path: folder.metricsPath, onWarning: () => {} })
  onTestFinished(() => metrics.close())
  return { folder, metrics }
}

/** What was said on stderr. */
function said(): string[] {
  const lines: string[] = []
  const spy = vi.spyOn(console, 'error').mockImplementation((line: string) => void lines.push(line))
  onTestFinished(() => spy.mockRestore())
  return lines
}

test('so often without a step in between, each time resumed from the run that was lost; then the command that goes on', async () => {
  const { folder, metrics } = runFolder()
  const lines = said()
  const begun: unknown[] = []
  const work = outliveDevice(
    loaded,
    new AbortController().signal,
    async ({ resume }) => {
      begun.push(resume)
      // Two steps of progress: what was lost before them no longer counts.
      if (begun.length === 2 || begun.length === 4) metrics.write(begun.length, {})
      throw new LostRun(folder, lost, loaded.config)
    },
    pauses,
  )
  await expect(work).rejects.toThrow(
    `${lost.message} (4 times without a finished step in between). Operating systems reset a GPU that works for seconds without a pause; a smaller trainer.args.micro_batch_tokens shortens its work (docs/troubleshooting.md, "The GPU device is lost"). What was saved is intact: node train.js ${AT} ${shellWord(folder.configPath)} --resume continues from there.`,
  )
  expect(begun).toHaveLength(7)
  expect(begun[0]).toBeUndefined()
  for (const resume of begun.slice(1)) expect(resume).toEqual({ kind: 'dir', dir: folder.path })
  const tries = lines.map((line) => /in ([\d.]+) s.*attempt (\d) of 3/.exec(line)!.slice(1).join(' '))
  expect(tries).toEqual(['0.001 1', '0.001 1', '0.002 2', '0.001 1', '0.002 2', '0.003 3'])
})

test('a device that is lost while the model is loaded; an error of another kind; a user who stops meanwhile', async () => {
  said()
  const signal = new AbortController().signal
  let tries = 0
  await outliveDevice(loaded, signal, async ({ resume }) => {
    expect(resume).toBeUndefined()
    if (++tries < 3) throw lost
  }, pauses) // prettier-ignore
  expect(tries).toBe(3)
  const other = new GpuError('the GPU reported: something else')
  await expect(outliveDevice(loaded, signal, () => Promise.reject(other), pauses)).rejects.toBe(other)

  const { folder } = runFolder()
  const stop = new AbortController()
  const begin = performance.now()
  setTimeout(() => stop.abort(), 50)
  const stopped = outliveDevice(loaded, stop.signal, () => Promise.reject(new LostRun(folder, lost, loaded.config)), { ...pauses, firstMs: 600_000, longestMs: 600_000 }) // prettier-ignore
  await expect(stopped).rejects.toThrow(/\(and the run was asked to stop\)\. What was saved is intact: .*--resume/)
  expect(performance.now() - begin).toBeLessThan(60_000)
})

test('a trace of steps that were made already is not asked for again; one of steps to come still is', async () => {
  said()
  for (const [steps, kept] of [
    [[2, 3], false],
    [[5, 6], true],
    [undefined, true],
  ] as const) {
    const { folder, metrics } = runFolder()
    metrics.write(3, {})
    const wish = { level: 'kernels' as const, ...(steps && { steps: [...steps] as [number, number] }) }
    const wishes: unknown[] = []
    await outliveDevice({ ...loaded, trace: wish }, new AbortController().signal, ({ trace }) => {
      wishes.push(trace)
      return wishes.length === 1 ? Promise.reject(new LostRun(folder, lost, loaded.config)) : Promise.resolve()
    }, pauses) // prettier-ignore
    expect(wishes).toEqual([wish, kept ? wish : undefined])
  }
})

test('supervised training is gone on with by its own verb', async () => {
  said()
  const { folder } = runFolder()
  const sft = { ...parseSftConfig('model = "models/tiny"\n[data.env]\nid = "reverse-text"'), dryRun: false }
  const begun: boolean[] = []
  const work = outliveDevice({ ...sft, autoMicroBatch: true }, new AbortController().signal, (now) => {
    begun.push(now.autoMicroBatch)
    return Promise.reject(new LostRun(folder, lost, sft.config))
  }, { ...pauses, tries: 1 }) // prettier-ignore
  await expect(work).rejects.toThrow(`: node cli.js sft ${AT} ${shellWord(folder.configPath)} --resume continues from there.`)
  // What "auto" came to stays.
  expect(begun).toEqual([true, false])
})
