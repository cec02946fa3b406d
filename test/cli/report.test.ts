/** What a run leaves beside metrics.jsonl, and `node cli.js report` as a user runs it. */
import { execFile, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { hostname } from 'node:os'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { beforeAll, expect, onTestFinished, test } from 'vitest'
import { acquireLock } from '../../src/monitor/run-lock.ts'
import { TinyRuns, type Outcome } from './tiny-run.ts'

const runs = new TinyRuns()
const cli = fileURLToPath(new URL('../../cli.js', import.meta.url))
const report = (words: string[], env = {}) =>
  spawnSync(process.execPath, [cli, 'report', ...words], { cwd: runs.dir, encoding: 'utf8', env: { ...process.env, ...env } })
let made: Outcome
beforeAll(async () => {
  await runs.prepare()
  // Nobody listens there.
  const env = { MLFLOW_TRACKING_URI: 'http://127.0.0.1:9', TRACKIO_DIR: runs.path('trackio') }
  made = await runs.run(['run_name=made', 'eval_strategy=steps', 'report_to=tensorboard,mlflow'], env)
}, 400_000)

test('a run with a sink that is away ends well, and says what was not sent', () => {
  expect(made, made.stderr).toMatchObject({ code: 0 })
  expect(made.stdout + made.stderr).toMatch(/mlflow: metrics cannot be sent for now/)
  expect(made.stdout + made.stderr).toMatch(/mlflow: 3 rows of metrics.jsonl were not sent/)
  const [events] = readdirSync(runs.path('outputs/made/tensorboard'))
  expect(statSync(runs.path('outputs/made/tensorboard', events)).size).toBeGreaterThan(1000)
  expect(readdirSync(runs.path('outputs/made/sinks'))).toEqual(['tensorboard.json'])
})

test('report.html is there at the end, and is made again by hand', () => {
  const html = readFileSync(runs.path('outputs/made/report.html'), 'utf8')
  expect(made.stdout).toContain('outputs/made/report.html')
  for (const text of ['<figcaption>reward', 'Evaluations', '<article>', 'report_to = [']) expect(html).toContain(text)
  const plots = readdirSync(runs.path('outputs/made/plots'))
  for (const name of ['reward.svg', 'eval-even-avg@1.svg', 'optim-grad_norm.svg']) expect(plots).toContain(name)
  const again = report(['outputs/made', '--out', 'here.html'])
  expect(again, again.stderr).toMatchObject({ status: 0 })
  expect(readFileSync(runs.path('here.html'), 'utf8')).toBe(html)
})

test('--sync sends a run to a sink that it was not trained with, once', () => {
  const env = { TRACKIO_DIR: runs.path('trackio') }
  for (const _ of [1, 2]) expect(report(['outputs/made', '--sync', 'trackio'], env)).toMatchObject({ status: 0 })
  expect(existsSync(runs.path('trackio/dawn-rl.db'))).toBe(true)
  const cursor = JSON.parse(readFileSync(runs.path('outputs/made/sinks/trackio.json'), 'utf8')) as { offset: number }
  expect(cursor.offset).toBe(statSync(runs.path('outputs/made/metrics.jsonl')).size)
})

test('--sync: a run that goes on is not ended, and one that was killed has failed, though its rows were all sent before', async () => {
  const ends: unknown[] = []
  const server = createServer((request, response) => {
    let text = ''
    request.on('data', (chunk: Buffer) => (text += chunk.toString()))
    request.on('end', () => {
      if (request.url!.endsWith('runs/update')) ends.push((JSON.parse(text) as { status: string }).status)
      response.end(JSON.stringify({ experiment: { experiment_id: '1' }, run: { info: { run_id: 'r' } } }))
    })
  })
  onTestFinished(() => void server.close())
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const env = { ...process.env, MLFLOW_TRACKING_URI: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
  const sync = () =>
    promisify(execFile)(process.execPath, [cli, 'report', 'outputs/cut', '--sync', 'mlflow'], { cwd: runs.dir, env })
  mkdirSync(runs.path('outputs/cut'))
  cpSync(runs.path('outputs/made/metrics.jsonl'), runs.path('outputs/cut/metrics.jsonl'))
  const release = acquireLock(runs.path('outputs/cut/run.lock'), 'cut')
  expect((await sync()).stdout).toMatch(/^mlflow: all rows of \S+ were sent; the run goes on: repeat this when it has ended$/m)
  expect(ends).toEqual([])
  writeFileSync(runs.path('outputs/cut/config.toml'), '[trainer.args]\nreport_to = ["mlflow"]\n')
  await expect(sync()).rejects.toThrow(
    /cut is in use by a run that sends its metrics to mlflow itself \(report_to\): leave mlflow out/,
  )
  release()
  writeFileSync(runs.path('outputs/cut/run.lock'), JSON.stringify({ pid: 2 ** 30, host: hostname(), started: null, since: '' }))
  for (const _ of [1, 2]) expect((await sync()).stdout).toMatch(/were sent$/m)
  expect(ends).toEqual(['FAILED'])
})

test('several runs on one page, with a benchmark', () => {
  const bench = fileURLToPath(new URL('../../bench/results/decode.json', import.meta.url))
  const made2 = report(['outputs/made', 'outputs/made', '--bench', bench])
  expect(made2, made2.stderr).toMatchObject({ status: 0, stdout: 'compare.html\n' })
  const html = readFileSync(runs.path('compare.html'), 'utf8')
  for (const text of ['<h2>Runs</h2>', '<p>They do not differ.</p>', 'decode: tokens/s']) expect(html).toContain(text)
})

test('mistakes are sentences', async () => {
  expect(report(['nowhere'])).toMatchObject({ status: 2, stderr: expect.stringContaining('has no metrics.jsonl') as string })
  expect(report([])).toMatchObject({ status: 2, stderr: expect.stringContaining('give outputs/NAME, or --bench FILE') as string })
  expect(report(['outputs/made', '--sync', 'wanda'])).toMatchObject({ status: 2 })
  expect(report(['outputs/made', '--sync', 'trackio', '--out', 'page.html', '--plots', 'there'])).toMatchObject({
    status: 2,
    stderr: 'report: --sync writes no page. Leave out --out, --plots, or --sync.\n',
  })
  cpSync(runs.path('outputs/made'), runs.path('broken'), { recursive: true })
  runs.write('broken/config.toml', 'model = "x"\nenv = [\n')
  expect(report(['broken', '--sync', 'trackio'], { TRACKIO_DIR: runs.path('trackio') })).toMatchObject({
    status: 2,
    stderr: expect.stringMatching(/broken[\\/]config\.toml:\d:\d is not valid TOML: /) as string,
  })
  expect(report(['outputs/made', '--out', 'no/folder.html'])).toMatchObject({
    status: 2,
    stderr: expect.stringContaining('The report cannot be made: ENOENT') as string,
  })
  const without = await runs.run(['run_name=refused', 'report_to=wandb'], { WANDB_API_KEY: '' })
  expect(without).toMatchObject({ code: 2, stderr: expect.stringContaining('WANDB_API_KEY is not set') as string })
  expect(runs.runs()).not.toContain('refused')
})
