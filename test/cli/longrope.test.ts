/** A model with longrope takes texts up to its original context: what is longer is refused before anything runs, in every way in. */
import { spawnSync } from 'node:child_process'
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect, test } from 'vitest'
import { roundToBf16 } from '../../src/model/bf16.ts'
import { parseConfig } from '../../src/model/config/config.ts'
import { writeSafetensors } from '../../src/model/files/safetensors.ts'
import { tensorShapes } from '../../src/model/decoder/shapes.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const odd = join(root, 'test/fixtures/odd/phi4')
const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-longrope-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** A model of this kind with the words of models/tiny. */
const tiny = join(root, 'models/tiny')
const read = (path: string) => JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>
const { vocab_size, eos_token_id } = read(join(tiny, 'config.json'))
const raw = { ...read(join(odd, 'model/config.json')), vocab_size, eos_token_id }
writeFileSync(join(folder, 'config.json'), JSON.stringify(raw))
for (const name of readdirSync(tiny)) if (/token|chat/.test(name)) copyFileSync(join(tiny, name), join(folder, name))
const tensors = [...tensorShapes(parseConfig(raw, 'config.json'))].map(([name, shape]) => {
  const values = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => Math.sin(i) / 8)
  return [name, { dtype: 'BF16' as const, shape, data: roundToBf16(values) }] as const
})
await writeSafetensors(join(folder, 'model.safetensors'), Object.fromEntries(tensors), { format: 'pt' })

function run(...words: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, words, { cwd: root, encoding: 'utf8' })
  return { status, stdout, stderr }
}
const refusal = (what: string) =>
  expect.stringMatching(
    new RegExp(
      `${what}, and .+ takes 64 at most here: of longer texts its rope type, longrope, turns every token in another way, `,
    ),
  ) as string

test('score and grad', () => {
  const [sample] = read(join(odd, 'batch.json')) as unknown as Record<string, number[]>[]
  const longer = Object.fromEntries(Object.entries(sample).map(([key, list]) => [key, [...list, ...list].slice(0, 65)]))
  const batch = join(folder, 'batch.json')
  const words = ['--model', join(odd, 'model'), '--batch', batch, '--out', join(folder, 'out.safetensors')]
  writeFileSync(batch, JSON.stringify([longer]))
  for (const verb of ['score', 'grad'])
    expect(run('cli.js', verb, ...words)).toMatchObject({ status: 2, stderr: refusal('a sequence has 65 tokens') })
  writeFileSync(
    batch,
    JSON.stringify([Object.fromEntries(Object.entries(longer).map(([key, list]) => [key, list.slice(0, 64)]))]),
  )
  expect(run('cli.js', 'score', ...words).status).toBe(0)
})

test('train, whose sequences may have max_seq_len tokens, and what it prints with --dry-run', () => {
  const lengths = '--max_prompt_len 40 --max_tokens 24 --micro_batch_tokens 512'.split(' ')
  const words = ['train.js', '@', 'configs/tiny.toml', '--model.name', folder, '--output_dir', join(folder, 'out'), ...lengths]
  const of = (tokens: number, ...more: string[]) => run(...words, '--max_seq_len', String(tokens), ...more)
  for (const more of [['--dry-run'], []])
    expect(of(65, ...more)).toMatchObject({ status: 2, stderr: refusal('trainer.args.max_seq_len is 65') })
  const { status, stdout, stderr } = of(64, '--dry-run')
  expect(status, stderr).toBe(0)
  expect(stdout).toMatch(/# GPU memory for /)
})

test('sft, whose examples may have no more', () => {
  const rows = join(folder, 'rows.jsonl')
  writeFileSync(rows, JSON.stringify({ prompt: 'a', completion: 'b c d '.repeat(60) }))
  const config = join(folder, 'sft.toml')
  const text = `model = { name = '${folder}' }\ndata = { path = '${rows}' }\n[trainer.args]\noutput_dir = '${folder}/out'\nmax_seq_len = 512\nbatch_size = 1\nmax_steps = 1\n`
  writeFileSync(config, text)
  expect(run('cli.js', 'sft', '@', config)).toMatchObject({ status: 2, stderr: refusal('an example has \\d+ tokens') })
})

test('serve', () => {
  const words = ['serve', '--model', folder, '--port', '0', '--max-model-len']
  expect(run('cli.js', ...words, '65')).toMatchObject({ status: 2, stderr: refusal('--max-model-len is 65') })
})
