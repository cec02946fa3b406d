/** `train` in a real terminal: what a person sees of a run, and ends it with a key. */
import { fileURLToPath } from 'node:url'
import { beforeAll, expect, test } from 'vitest'
import { noTerminal, TestTerminal } from '../monitor/terminal/terminal.ts'
import { TinyRuns } from './tiny-run.ts'

const runs = new TinyRuns()
const trainJs = fileURLToPath(new URL('../../train.js', import.meta.url))
const cliJs = fileURLToPath(new URL('../../cli.js', import.meta.url))
const set = (key: string, value: string | number) => [`--trainer.args.${key}`, String(value)]
beforeAll(async () => await runs.prepare())

test.skipIf(noTerminal !== '')('a run with its panel, samples on a key, and q: saved, and the terminal empty below', async () => {
  const words = [...set('run_name', 'seen'), ...set('max_steps', 500), ...set('log_completions', 'false')]
  const terminal = new TestTerminal([process.execPath, trainJs, '@', 'run.toml', ...words], {
    columns: 110,
    rows: 45,
    cwd: runs.dir,
  })
  const panel = [
    /^step [2-9]\d*\/500 +━*─+/m,
    /^reward +0\.\d{3} +[!]* +[▁-█]/m,
    /^kl +\S+ .* gradient +[\d.]+/m,
    /^sampling +[\d.]+k? tok\/s .* training +[\d.]+k? tok\/s/m,
    /^waiting +trainer for answers [\d.]+m?s \(.*\), sampler for the trainer/m,
    /^memory +GPU [\d.]+ [KM]iB \([\d.]+ [KM]iB at most\), process [\d.]+ [MG]iB$/m,
    /^now( |$)/m,
  ]
  await terminal.seesAll(panel, 300)
  terminal.type('s')
  await terminal.sees(/^best and worst of step \d+/)
  terminal.type('q')
  expect(await terminal.ended()).toBe(0)
  const all = terminal.all().join('\n')
  expect(all).toMatch(/^SIGINT: the current step is finished/m)
  expect(all).toMatch(/^Stopped after step \d+ of 500; it is saved\.$/m)
  expect(all).not.toMatch(/^─{20}/m)
  expect(runs.rows('seen', 'metrics.jsonl').length).toBeGreaterThan(1)
})

test.skipIf(noTerminal !== '')('what was learned fits the terminal', async () => {
  const evaluated = [...set('eval_strategy', 'steps'), ...set('eval_examples', 4)]
  const words = [...set('run_name', 'narrow'), ...set('max_steps', 1), ...set('log_completions', 'false'), ...evaluated]
  const terminal = new TestTerminal([process.execPath, trainJs, '@', 'run.toml', ...words], {
    columns: 60,
    rows: 20,
    cwd: runs.dir,
  })
  expect(await terminal.ended()).toBe(0)
  expect(terminal.all().join('\n')).toMatch(/^ {4}before, reward \S+ +\| after, reward \S+$/m)
})

test.skipIf(noTerminal !== '')('sft has the panel too, of its loss, and ends by the same key', async () => {
  const rows = Array.from({ length: 8 }, (_, i) => ({ prompt: `say ${i}`, completion: String(i) }))
  runs.write('rows.jsonl', rows.map((row) => JSON.stringify(row)).join('\n'))
  runs.write(
    'sft.toml',
    'model = "tiny"\n[data]\npath = "rows.jsonl"\n[trainer.args]\nbatch_size = 4\nmax_seq_len = 64\nlora_rank = 4\nmax_steps = 5000\n',
  )
  const words = [process.execPath, cliJs, 'sft', '@', 'sft.toml', ...set('run_name', 'given')]
  const terminal = new TestTerminal(words, { columns: 110, rows: 45, cwd: runs.dir })
  const panel = [
    /^step [2-9]\d*\/5000 +━*─+/m,
    /^loss +[\d.]+ +[▁-█]+ .* gradient +[\d.]+/m,
    /^entropy +[\d.]+ .* training +[\d.]+k? tok\/s/m,
    /^memory +GPU [\d.]+ [KM]iB \([\d.]+ [KM]iB at most\), process [\d.]+ [MG]iB$/m,
    /^now( |$)/m,
    /^l what is healthy {3}p hide this {3}q stop after this step$/m,
  ]
  const seen = (await terminal.seesAll(panel, 300)).join('\n')
  expect(seen).not.toMatch(/^(reward|waiting|kl) /m)
  terminal.type('l')
  await terminal.sees(/^gradient +\S+/)
  terminal.type('q')
  expect(await terminal.ended()).toBe(0)
  const all = terminal.all().join('\n')
  expect(all).toMatch(/^SIGINT: the current step is finished/m)
  expect(all).toMatch(/^checkpoint: .*step_\d+$/m)
  expect(all).not.toMatch(/^─{20}/m)
  const last = runs.rows('given', 'metrics.jsonl').at(-1)!.step as number
  expect(runs.rows('given', 'logs/timeline.jsonl').map((row) => row.step)).toEqual(Array.from({ length: last }, (_, i) => i + 1))
})
