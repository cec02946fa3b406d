import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join, sep } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, onTestFinished, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { MetricsWriter, readMetrics } from '../../src/monitor/metrics-writer.ts'
import { RolloutWriter } from '../../src/monitor/rollout-writer.ts'
import { defaultRunName, openRunFolder } from '../../src/monitor/run-folder.ts'
import type { RunFolderOptions } from '../../src/monitor/run-folder.ts'
import { TimelineWriter } from '../../src/monitor/timeline-writer.ts'
import { rollout, scored, temporaryFolder } from './helpers.ts'
import { behind } from '../windows.ts'

function open(outputDir: string, over: Partial<RunFolderOptions> = {}) {
  const folder = openRunFolder({ outputDir, runName: 'first', configText: 'model = "m"\n', ...over })
  onTestFinished(() => folder.close())
  return folder
}

function errorOf(action: () => unknown, base: string): string {
  try {
    action()
  } catch (error) {
    expect(error).toBeInstanceOf(UserError)
    return (error as Error).message
      .replaceAll(base, 'outputs')
      .replaceAll(`outputs${sep}`, 'outputs/')
      .replaceAll(`first${sep}`, 'first/')
  }
  throw new Error('nothing was thrown')
}

test('a new run: config, log, link to the log, lock; all there', () => {
  const base = temporaryFolder()
  const folder = open(base)
  expect(readFileSync(join(base, 'first', 'config.toml'), 'utf8')).toBe('model = "m"\n')
  expect(folder.attempt).toBe(1)
  writeFileSync(folder.logPath, 'words\n')
  expect(readFileSync(behind(join(base, 'first', 'logs', 'latest')), 'utf8')).toBe('words\n')
  expect(readdirSync(join(base, 'first')).toSorted()).toEqual(['checkpoints', 'config.toml', 'logs', 'rollouts', 'run.lock'])
  folder.close()
  expect(existsSync(join(base, 'first', 'run.lock'))).toBe(false)
})

test('a folder with anything in it is refused, and left as it was', () => {
  const base = temporaryFolder()
  mkdirSync(join(base, 'first'))
  // An empty folder holds no run.
  open(base).close()
  expect(errorOf(() => open(base), base)).toMatchInlineSnapshot(
    `"outputs/first already holds a run: choose another run_name, continue it with --resume, or delete the folder."`,
  )
  mkdirSync(join(base, 'other'))
  writeFileSync(join(base, 'other', 'thesis.txt'), 'mine')
  expect(errorOf(() => open(base, { runName: 'other' }), base)).toContain('already holds a run')
  expect(readdirSync(join(base, 'other'))).toEqual(['thesis.txt'])
})

test('what cannot be a run folder is refused in one sentence', () => {
  const base = temporaryFolder()
  writeFileSync(join(base, 'file'), '')
  expect(errorOf(() => open(base, { runName: 'file' }), base)).toMatchInlineSnapshot(
    `"outputs/file is a file, not a folder: choose another run_name or output_dir, or move the file."`,
  )
  expect(errorOf(() => open(base, { resume: true }), base)).toMatchInlineSnapshot(
    `"Nothing to resume: outputs/first does not exist. Leave --resume out to start it, or correct run_name."`,
  )
  // A checkpoint, named as `resume_from_checkpoint` names one: a whole new run would be made inside it.
  mkdirSync(join(base, 'run', 'step_1'), { recursive: true })
  writeFileSync(join(base, 'run', 'step_1', 'STABLE'), '{}')
  for (const runName of ['step_1', 'run']) {
    const outputDir = runName === 'run' ? base : join(base, 'run')
    expect(errorOf(() => open(outputDir, { runName, resume: true }), base)).toContain('is not the folder of a run')
  }
  expect(readdirSync(join(base, 'run'), { recursive: true })).toEqual(['step_1', join('step_1', 'STABLE')])
  rmSync(join(base, 'run'), { recursive: true })
  for (const runName of ['', '..', '../x', 'a/b', 'a\\b', '.hidden', 'a\n', 'a.', 'a ', 'x'.repeat(201)]) {
    expect(errorOf(() => open(base, { runName }), base)).toContain('cannot be the name of a folder')
  }
  expect(errorOf(() => open(join(base, 'file'), {}), base)).toContain('Cannot make the run folder')
  expect(readdirSync(base)).toEqual(['file'])
  // A file system that says of a folder that there is none.
  if (existsSync('/proc/self')) expect(errorOf(() => open('/proc/none'), base)).toContain('Cannot make the run folder')
})

test.each(['config.toml', 'metrics.jsonl', 'logs/timeline.jsonl'])(
  'a folder in the place of %s: one sentence, no lock',
  (file) => {
    const base = temporaryFolder()
    open(base).close()
    rmSync(join(base, 'first', file), { force: true })
    mkdirSync(join(base, 'first', file))
    const words = `${join(base, 'first', file)} is a folder, but a run writes a file there. Move it away.`
    expect(() => open(base, { resume: true })).toThrow(new UserError(words))
    expect(existsSync(join(base, 'first', 'run.lock'))).toBe(false)
  },
)

test.runIf(process.platform === 'linux')('a run folder that is made by half is taken away again', () => {
  const base = temporaryFolder()
  // The lock has room in the longest path there can be, the log's link has not.
  const room = 4095 - `/first/run.lock.${process.pid}.tmp`.length
  const outputDir = `${base}${`/${'d'.repeat(99)}`.repeat(41)}`.slice(0, room).replace(/\/$/, 'd')
  expect(errorOf(() => openRunFolder({ outputDir, runName: 'first', configText: '' }), base)).toContain(
    'Cannot make the run folder',
  )
  expect(readdirSync(outputDir)).toEqual([])
  mkdirSync(join(base, 'second'))
  writeFileSync(join(base, 'second', 'logs'), '')
  const again = () => openRunFolder({ outputDir: base, runName: 'second', configText: '', resume: true })
  expect(errorOf(again, base)).toContain('Cannot write into the run folder')
  expect(readdirSync(join(base, 'second'))).toEqual(['logs'])
})

test('default names are safe, say what they are of, and differ', () => {
  expect(defaultRunName('short-answers', 'models/SmolLM2-135M-Instruct.Q4_1.gguf', 'abc123')).toBe(
    'short-answers--smollm2-135m-instruct.q4_1--abc123',
  )
  expect(defaultRunName('./my env.ts', 'Qwen/Qwen3-4B/', 'abc123')).toBe('my-env.ts--qwen3-4b--abc123')
  expect(defaultRunName('a', 'b')).not.toBe(defaultRunName('a', 'b'))
  open(temporaryFolder(), { runName: defaultRunName('../..', '///') })
})

test('two in one process, and two processes, cannot hold one folder; a dead holder is no obstacle', async () => {
  const base = temporaryFolder()
  const url = pathToFileURL(join(import.meta.dirname, '../../src/monitor/run-folder.ts')).href
  const child = spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { openRunFolder } from ${JSON.stringify(url)}
       openRunFolder({ outputDir: ${JSON.stringify(base)}, runName: 'first', configText: '' })
       console.log('holding'); setInterval(() => {}, 1000)`,
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  )
  onTestFinished(() => void child.kill('SIGKILL'))
  await once(child.stdout, 'data')
  const refused = errorOf(() => open(base, { resume: true }), base)
  expect(refused).toContain(`outputs/first is in use by process ${child.pid} (since `)
  expect(refused).toContain('Wait for it or stop it, or choose another run_name')
  child.kill('SIGKILL')
  await once(child, 'exit')
  // Killed, so its lock is still there; it must not stand in the way.
  expect(existsSync(join(base, 'first', 'run.lock'))).toBe(true)
  const folder = open(base, { resume: true })
  expect(folder.attempt).toBe(2)
  expect(errorOf(() => open(base, { resume: true }), base)).toContain(`in use by process ${process.pid}`)
  folder.close()
  open(base, { resume: true })
})

test('a lock of a reused process id is stale, one of another machine is not, a torn one is stale after a while', () => {
  const base = temporaryFolder()
  open(base).close()
  const lock = join(base, 'first', 'run.lock')
  const holder = { pid: process.pid, host: hostname(), started: '1', since: 'then' }
  writeFileSync(lock, JSON.stringify({ ...holder, host: 'elsewhere' }))
  expect(errorOf(() => open(base, { resume: true }), base)).toMatch(
    /on the machine elsewhere .* delete outputs\/first\/run\.lock/,
  )
  // Where a system tells no start of a process, its id may be that of another by now: after Windows was started anew, say.
  writeFileSync(lock, JSON.stringify({ ...holder, started: null }))
  expect(errorOf(() => open(base, { resume: true }), base)).toMatch(
    /is in use by process \d+ .*; if that process is not dawn-rl, delete outputs\/first\/run\.lock\./,
  )
  writeFileSync(lock, '{"pid": 1')
  expect(errorOf(() => open(base, { resume: true }), base)).toContain('just starting')
  utimesSync(lock, new Date(Date.now() - 60_000), new Date(Date.now() - 60_000))
  open(base, { resume: true }).close()
  if (process.platform === 'linux') {
    // This very process id, but it started at another time: the holder is gone.
    writeFileSync(lock, JSON.stringify(holder))
    open(base, { resume: true }).close()
  }
})

test('of several processes that find a dead lock, or a new folder, one at a time is at work, and the others do not spoil it', () => {
  const base = temporaryFolder()
  open(base).close()
  const lock = join(base, 'first', 'run.lock')
  const dead = JSON.stringify({ pid: 4194304, host: hostname(), started: '1', since: 'then' })
  writeFileSync(lock, dead)
  // Another one has read the same dead lock, and is about to put its own in its place.
  writeFileSync(`${lock}.turn`, '1')
  expect(errorOf(() => open(base, { resume: true }), base)).toContain('Other processes are opening')
  expect(readFileSync(lock, 'utf8')).toBe(dead)
  // That one was killed in the midst of it.
  utimesSync(`${lock}.turn`, new Date(Date.now() - 60_000), new Date(Date.now() - 60_000))
  open(base, { resume: true }).close()
  expect(existsSync(`${lock}.turn`)).toBe(false)
  // The same a moment ago: a run that is killed at its start can be resumed at once.
  for (const file of [lock, `${lock}.turn`]) writeFileSync(file, dead)
  open(base, { resume: true }).close()
  expect(existsSync(`${lock}.turn`)).toBe(false)
  // What another writes aside, to have the lock of a new folder, is no run in it.
  mkdirSync(join(base, 'second'))
  writeFileSync(join(base, 'second', `run.lock.${process.ppid}.tmp`), '')
  open(base, { runName: 'second' })
})

test('a fork that is killed while its folder is made is still a fork when it is resumed', async () => {
  const base = temporaryFolder()
  const at = (path: string) => JSON.stringify(pathToFileURL(join(import.meta.dirname, '../../src', path)).href)
  const code = `
    import fs from 'node:fs'
    import { syncBuiltinESMExports } from 'node:module'
    const { mkdirSync } = fs
    fs.mkdirSync = (path, ...more) => (path.endsWith('logs') ? process.kill(process.pid, 'SIGKILL') : mkdirSync(path, ...more))
    syncBuiltinESMExports()
    const { openRunFolder } = await import(${at('monitor/run-folder.ts')})
    openRunFolder({ outputDir: ${JSON.stringify(base)}, runName: 'first', configText: '', origin: { from: 'other', step: 2 } })`
  await once(spawn(process.execPath, ['--input-type=module', '-e', code]), 'exit')
  expect(readdirSync(join(base, 'first'))).not.toContain('config.toml')
  expect(open(base, { resume: true }).origin).toEqual({ from: 'other', step: 2 })
  expect(open(base, { runName: 'second' }).origin).toBeUndefined()
})

test('rewind: later rows, rollouts and checkpoints go; earlier ones stay, byte for byte', () => {
  const base = temporaryFolder()
  const first = open(base)
  const metrics = new MetricsWriter({ path: first.metricsPath, onWarning: () => {} })
  const rollouts = new RolloutWriter(first)
  const timeline = new TimelineWriter({ path: first.timelinePath, onWarning: () => {} })
  for (let step = 0; step <= 12; step++) {
    metrics.write(step, { reward: step / 10 })
    timeline.write(step, 1000 * step, 1000 * step + 900.1, [
      { track: 'trainer', name: 'optimizer', start: 1000 * step + 0.3, end: 1000 * step + 7 },
    ])
    rollouts.write(step, 'train', scored([rollout()]))
    if (step % 4 === 0) mkdirSync(first.checkpointPath(step))
  }
  metrics.close()
  timeline.close()
  appendFileSync(first.metricsPath, '{"step": 13, "rew')
  appendFileSync(first.timelinePath, '{"step":13,"beg')
  mkdirSync(join(first.checkpointsPath, 'step_13.tmp'))
  first.close()
  const earlier = (path: string) => `${readFileSync(path, 'utf8').split('\n').slice(0, 9).join('\n')}\n`
  const [kept, keptTimes] = [earlier(first.metricsPath), earlier(first.timelinePath)]

  const again = open(base, { resume: true })
  expect(again.checkpointSteps()).toEqual([0, 4, 8, 12])
  expect(again.rewind(8)).toEqual({ metricsRows: 4, rolloutFiles: 8, checkpoints: [12] })
  expect(readFileSync(again.metricsPath, 'utf8')).toBe(kept)
  expect(readFileSync(again.timelinePath, 'utf8')).toBe(keptTimes)
  expect(readdirSync(join(again.path, 'rollouts'))).toHaveLength(18)
  expect(existsSync(again.tokensPath(8))).toBe(true)
  expect(existsSync(again.tokensPath(9))).toBe(false)
  // A checkpoint of the future is neither lost nor the newest.
  expect(again.checkpointSteps()).toEqual([0, 4, 8])
  expect(existsSync(join(again.checkpointsPath, 'step_12.superseded'))).toBe(true)
  expect(again.rewind(8)).toEqual({ metricsRows: 0, rolloutFiles: 0, checkpoints: [] })
  again.close()

  const third = open(base, { resume: true, configText: 'model = "other"\n' })
  third.rewind(4)
  expect(readMetrics(third.metricsPath).map((row) => row.step)).toEqual([0, 1, 2, 3, 4])
  expect(third.attempt).toBe(3)
  // It may be refused yet.
  expect(readFileSync(join(third.path, 'config.toml'), 'utf8')).toBe('model = "m"\n')
  expect(third.keepConfig()).toEqual(['model = "m"\n', 'model = "other"\n'])
  expect(readFileSync(join(third.path, 'config.toml'), 'utf8')).toBe('model = "other"\n')
  expect(readFileSync(join(third.path, 'config.attempt_2.toml'), 'utf8')).toBe('model = "m"\n')
})

test('a rewind that is cut off leaves no checkpoint whose rows are gone', () => {
  const base = temporaryFolder()
  const folder = open(base)
  const metrics = new MetricsWriter({ path: folder.metricsPath, onWarning: () => {} })
  for (const step of [1, 2, 3]) {
    metrics.write(step, { reward: 0 })
    mkdirSync(folder.checkpointPath(step))
  }
  metrics.close()
  // It goes no further than here: this cannot be replaced.
  mkdirSync(`${folder.metricsPath}.${process.pid}.tmp`)
  expect(() => folder.rewind(1)).toThrow('EISDIR')
  expect(folder.checkpointSteps()).toEqual([1])
  expect(readMetrics(folder.metricsPath)).toHaveLength(3)
})

test('discard takes back a start that came to nothing, and nothing else', () => {
  const base = temporaryFolder()
  open(base).discard()
  expect(readdirSync(base)).toEqual([])
  const run = open(base)
  new MetricsWriter({ path: run.metricsPath, onWarning: () => {} }).write(0, { reward: 1 })
  run.discard()
  expect(readMetrics(run.metricsPath)).toHaveLength(1)
  open(base, { resume: true }).discard()
  expect(readMetrics(run.metricsPath)).toHaveLength(1)
  rmSync(join(base, 'first'), { recursive: true })
  // Closed, and another one goes on with it: it is that one's now.
  const ended = open(base)
  ended.close()
  const next = open(base, { resume: true })
  ended.discard()
  expect(readdirSync(next.path).toSorted()).toEqual(['checkpoints', 'config.toml', 'logs', 'rollouts', 'run.lock'])
  next.close()
  ended.discard()
  expect(readdirSync(base)).toEqual([])
  const foreign = open(base)
  writeFileSync(join(foreign.path, 'mine.txt'), 'kept')
  foreign.discard()
  expect(readdirSync(foreign.path)).toEqual(['mine.txt'])
  rmSync(foreign.path, { recursive: true })
  // Deleted by somebody else, whole or in part: the error that ended the start must not be replaced by one of a missing file.
  for (const closed of [false, true]) {
    const gone = open(base)
    if (closed) gone.close()
    rmSync(gone.path, { recursive: true })
    gone.discard()
    const partly = open(base)
    if (closed) partly.close()
    for (const name of ['rollouts', 'checkpoints']) rmSync(join(partly.path, name), { recursive: true })
    partly.discard()
    expect(readdirSync(base)).toEqual([])
  }
})

test('a run that had saved nothing goes back to before its first evaluation; what was written aside by a dead process goes', () => {
  const base = temporaryFolder()
  const first = open(base)
  const metrics = new MetricsWriter({ path: first.metricsPath, onWarning: () => {} })
  metrics.write(0, { 'eval/even/avg@1': 0.5 })
  metrics.write(1, { reward: 0.5 })
  metrics.close()
  new RolloutWriter(first).write(0, 'eval', scored([rollout()]))
  first.close()
  const path = join(base, 'first')
  const left = ['metrics.jsonl.99.tmp', 'logs/latest.99.tmp', 'rollouts/step_0.jsonl.99.tmp', 'run.lock.4194304.tmp']
  for (const name of [...left, `run.lock.${process.ppid}.tmp`, 'run.lock.turn']) writeFileSync(join(path, name), '')
  const again = open(base, { resume: true })
  // One that belongs to a process which is there may be another that wants the folder.
  expect(readdirSync(path).filter((name) => name.endsWith('.tmp'))).toEqual([`run.lock.${process.ppid}.tmp`])
  for (const name of [...left, 'run.lock.turn']) expect(existsSync(join(path, name)), name).toBe(false)
  expect(again.rewind(-1)).toEqual({ metricsRows: 2, rolloutFiles: 2, checkpoints: [] })
  expect(readMetrics(again.metricsPath)).toEqual([])
  expect(readdirSync(join(path, 'rollouts'))).toEqual([])
})
