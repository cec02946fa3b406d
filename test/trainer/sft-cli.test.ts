/** `cli.js sft` as one runs it: a real process, real files. */
import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { expect, test } from 'vitest'
import { openModel } from '../../src/model/open.ts'
import { readAdapter } from '../../src/model/peft.ts'
import { tempFolder } from './helpers.ts'

const folder = tempFolder()
const root = resolve('.')

function sft(...words: string[]): Promise<{ code: number | null; text: string }> {
  const child = spawn(process.execPath, [join(root, 'cli.js'), 'sft', ...words], {
    cwd: root,
    env: { ...process.env, NO_COLOR: '1' },
  })
  let text = ''
  child.stdout.on('data', (d: Buffer) => (text += d.toString()))
  child.stderr.on('data', (d: Buffer) => (text += d.toString()))
  return new Promise((done) => child.on('close', (code) => done({ code, text })))
}

const write = (name: string, text: string): string => {
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, name), text)
  return join(folder, name)
}
const metrics = (run: string) =>
  readFileSync(join(folder, 'out', run, 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, number>)

const newModel = `[model.new]
family = "qwen3"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
`
const config = (name: string, model: string, args: string): string =>
  write(
    name,
    `${model}
[data]
path = ${JSON.stringify(data())}

[trainer.args]
output_dir = ${JSON.stringify(join(folder, 'out'))}
batch_size = 4
max_seq_len = 64
learning_rate = 1e-2
save_steps = 4
${args}
`,
  )
const data = () => {
  const rows = Array.from('abcdefgh', (c) => c).map((c, i) =>
    i % 2 ? { prompt: c, completion: c.toUpperCase() } : { messages: [{ role: 'user', content: c }, { role: 'assistant', content: c.toUpperCase() }] },
  ) // prettier-ignore
  return write('data.jsonl', rows.map((row) => JSON.stringify(row)).join('\n'))
}

test('makes a model from nothing, goes on where it stopped with the same numbers, and trains an adapter on what it made', async () => {
  const made = join(folder, 'made')
  const all = `use_lora = false\nmax_steps = 8\nsave_to = ${JSON.stringify(made)}`
  const straight = await sft('@', config('a.toml', newModel, all), '--run-name', 'straight')
  expect(straight.code, straight.text).toBe(0)
  expect(straight.text).toMatch(/step 1\/8 \| loss 5\.\d+ \| entropy/)
  expect(straight.text).toContain(`model: ${made}`)
  const rows = metrics('straight')
  expect(rows.map((r) => r.step)).toEqual([1, 2, 3, 4, 5, 6, 7, 8])
  expect(rows[7]['loss/mean']).toBeLessThan(rows[0]['loss/mean'])
  expect((await openModel(made)).config.family).toBe('qwen3')
  expect(existsSync(join(folder, 'out/straight/checkpoints/step_8/STABLE'))).toBe(true)

  // The same command again does not overwrite the run.
  const again = await sft('@', join(folder, 'a.toml'), '--run-name', 'straight')
  expect([again.code, again.text]).toEqual([2, expect.stringContaining('already holds a run')])

  // Taken back to step 4, it makes steps 5 to 8 once more, to the same losses.
  const resumed = await sft('@', join(folder, 'a.toml'), '--run-name', 'straight', '--resume', 'step', '4')
  expect(resumed.code, resumed.text).toBe(0)
  const later = metrics('straight')
  expect(later.map((r) => [r.step, r['loss/mean'], r['optim/grad_norm']])).toEqual(
    rows.map((r) => [r.step, r['loss/mean'], r['optim/grad_norm']]),
  )

  const adapted = await sft(
    '@',
    config(
      'b.toml',
      `model = ${JSON.stringify(made)}`,
      'max_steps = 2\nlora_rank = 4\nlora_dropout = 0.1\nmicro_batch_tokens = "auto"',
    ),
    '--run-name',
    'adapter',
  )
  expect(adapted.code, adapted.text).toBe(0)
  expect(adapted.text).toContain('micro    micro_batch_tokens = 256 ("auto")')
  const adapter = await readAdapter(join(folder, 'out/adapter/checkpoints/step_2'))
  expect(adapter.config).toMatchObject({ r: 4, loraAlpha: 32, baseModel: made })
})

test.each([
  ['a row without an answer', '{"prompt": "a"}\n', /data\.jsonl:1 has neither messages nor a prompt and a completion/],
  [
    'a row that is too long',
    `{"prompt": "${'a'.repeat(99)}", "completion": "b"}\n`,
    /data\.jsonl:1 has \d+ tokens, more than max_seq_len \(64\)/,
  ],
])('%s: one sentence, exit code 2, no run folder left', async (_name, rows, message) => {
  const path = config('c.toml', newModel, 'use_lora = false\nmax_steps = 1')
  write('data.jsonl', rows)
  const { code, text } = await sft('@', path, '--run-name', 'refused')
  expect([code, text]).toEqual([2, expect.stringMatching(message)])
  expect(existsSync(join(folder, 'out/refused'))).toBe(false)
})
