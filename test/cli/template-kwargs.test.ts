/** chat_template_kwargs: what a chat template is handed is the same wherever a run's prompts are made. */
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, expect, test } from 'vitest'
import { checkEnvironment } from '../../src/cli/env-check.ts'
import type { RolloutRow } from '../../src/monitor/rollout-writer.ts'
import { samplesOf } from '../../src/cli/sft-setup.ts'
import { parseSftConfig } from '../../src/config/load.ts'
import { loadRows } from '../../src/environments/datasets.ts'
import { openModel } from '../../src/model/files/open.ts'
import { TinyRuns } from './tiny-run.ts'
import { asPosix } from '../windows.ts'

const runs = new TinyRuns()
const cli = fileURLToPath(new URL('../../cli.js', import.meta.url))
/** As Qwen3's: where thoughts are turned off the answer begins after an empty thought. */
const template =
  "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}(){% endif %}{{ m.content }}<|end|>{% endfor %}" +
  '{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and enable_thinking is false %}(){% endif %}{% endif %}'
/** Tokens of `<|user|>say 0<|end|><|assistant|>`, and of the empty thought. */
const [PROMPT, THOUGHT] = [8, 2]
const off = { enable_thinking: false, unknown_to_it: 1 }

beforeAll(async () => {
  await runs.prepare()
  runs.write('tiny/chat_template.jinja', template)
})

/** Starts a program and waits for the address that it tells. */
async function urlOf(child: ReturnType<typeof spawn>): Promise<string> {
  return await new Promise((resolve, reject) => {
    let text = ''
    child.stdout!.on('data', (piece: Buffer) => {
      text += piece.toString()
      const found = / at (http:\S+)\/v1/.exec(text)
      if (found) resolve(found[1])
    })
    child.once('close', () => reject(new Error(`it ended: ${text}`)))
  })
}

async function tokens(url: string, more: object = {}): Promise<number> {
  const body = JSON.stringify({ messages: [{ role: 'user', content: 'say 0' }], ...more })
  const reply = await fetch(`${url}/tokenize`, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
  return ((await reply.json()) as { count: number }).count
}

/** Evaluates an example; the tokens of its prompt, and what metadata.json says of the template. */
async function evaluated(words: string[]): Promise<{ prompt: number; told: unknown }> {
  const all = ['eval', ...words, '-n', '1', '-r', '1', '-t', '2', '--split', 'train']
  const child = spawn(process.execPath, [cli, ...all], { cwd: runs.dir, stdio: ['ignore', 'pipe', 'inherit'] })
  let text = ''
  child.stdout.on('data', (piece: Buffer) => (text += piece.toString()))
  await new Promise((resolve) => child.on('close', resolve))
  const folder = runs.path(/(outputs\/\S+)\s*$/.exec(asPosix(text))![1])
  const row = JSON.parse(readFileSync(join(folder, 'results.jsonl'), 'utf8').split('\n')[0]) as RolloutRow
  const { sampling_args } = JSON.parse(readFileSync(join(folder, 'metadata.json'), 'utf8')) as {
    sampling_args: { chat_template_kwargs?: unknown }
  }
  return { prompt: row.token_usage.input_tokens, told: sampling_args.chat_template_kwargs }
}

test('a run trains, evaluates and serves on the same prompts, and so does eval', { timeout: 300_000 }, async () => {
  const kwargs = ['--trainer.args.chat_template_kwargs.enable_thinking', 'false', '--trainer.args.chat_template_kwargs.unknown_to_it', '1'] // prettier-ignore
  const words = [...kwargs, 'eval_strategy=steps', 'eval_steps=50', 'max_steps=8', 'save_steps=8', 'run_name=off']
  const { child, outcome } = runs.start([...words, '--inference.serve', 'true', '--inference.serve_port', '0'])
  const url = await urlOf(child)
  expect(await tokens(url)).toBe(PROMPT + THOUGHT)
  expect(await tokens(url, { chat_template_kwargs: { enable_thinking: true } })).toBe(PROMPT)
  const { code, stderr, stdout } = await outcome
  expect({ code, stderr }).toMatchObject({ code: 0 })
  expect(stdout).toContain('<|assistant|>()')
  const rows = ['step_0', 'step_1', 'step_8'].flatMap((step) =>
    runs.rows('off', `rollouts/${step}.jsonl`),
  ) as unknown as RolloutRow[]
  // Rows of evaluation are 'held 0', a letter longer.
  for (const { token_usage, prompt } of rows)
    expect(token_usage.input_tokens).toBe(prompt.at(-1)!.content.length - 'say 0'.length + PROMPT + THOUGHT)
  expect(new Set(rows.map(({ prompt }) => prompt.at(-1)!.content.slice(0, 3)))).toEqual(new Set(['say', 'hel']))
  expect(await evaluated(['--run', 'outputs/off', '--no-base'])).toEqual({ prompt: PROMPT + THOUGHT, told: off })
  // The words of a command go first.
  const on = '{"extra_body": {"chat_template_kwargs": {"enable_thinking": true}}}'
  expect(await evaluated(['--run', 'outputs/off', '--no-base', '-S', on])).toEqual({ prompt: PROMPT, told: { enable_thinking: true } }) // prettier-ignore
})

test('serve has a default, and an endpoint is sent what the config says', { timeout: 300_000 }, async () => {
  const serve = ['serve', '--model', 'tiny', '--port', '0', '--log-level', 'silent']
  const start = (more: string[]) =>
    spawn(process.execPath, [cli, ...serve, ...more], { cwd: runs.dir, stdio: ['ignore', 'pipe', 'inherit'] })
  // With the byte order mark of an editor on Windows, which must not become a part of every prompt.
  runs.write('own.jinja', `\ufeff${template}`)
  runs.write('generation_config.json', '\ufeff{}')
  const files = ['--chat-template', 'own.jinja', '--generation-config', '.']
  const [plain, silent] = [start([]), start([...files, '--default-chat-template-kwargs', '{"enable_thinking": false}'])]
  try {
    const [plainUrl, silentUrl] = await Promise.all([urlOf(plain), urlOf(silent)])
    expect(await tokens(silentUrl)).toBe(PROMPT + THOUGHT)
    expect(await tokens(silentUrl, { chat_template_kwargs: { enable_thinking: true } })).toBe(PROMPT)
    const text = readFileSync(runs.path('run.toml'), 'utf8')
    runs.write('off.toml', `${text}chat_template_kwargs = { enable_thinking = false, unknown_to_it = 1 }\n`)
    const endpoint = ['-m', 'tiny', '-b', `${plainUrl}/v1`]
    expect(await evaluated(['./even.ts', ...endpoint])).toEqual({ prompt: PROMPT, told: undefined })
    expect(await evaluated(['@', 'off.toml', ...endpoint])).toEqual({ prompt: PROMPT + THOUGHT, told: off })
  } finally {
    plain.kill()
    silent.kill()
  }
})

test('sft learns what comes after it', async () => {
  const path = runs.write('rows.jsonl', '{"prompt": "say 0", "completion": "x"}\n')
  const model = await openModel(runs.path('tiny'))
  try {
    const tokenizer = await model.tokenizer()
    const learned = async (line: string) => {
      const text = `model = "x"\n[data]\npath = ${JSON.stringify(path)}\n[trainer.args]\n${line}`
      const [{ ids, lossMask }] = (await samplesOf(parseSftConfig(text).config, tokenizer)).train
      return tokenizer.decode(ids.filter((_, i) => lossMask[i]))
    }
    expect(await learned('')).toBe('()x<|end|>')
    expect(await learned('chat_template_kwargs = { enable_thinking = false }')).toBe('x<|end|>')
    // A row's own stand over the config's.
    runs.write('rows.jsonl', '{"prompt": "say 0", "completion": "x", "chat_template_kwargs": {"enable_thinking": false}}\n')
    expect(await learned('chat_template_kwargs = { enable_thinking = true }')).toBe('x<|end|>')
  } finally {
    model.close()
  }
})

test("a row's own, as TRL's column has them, stand over those of the run", { timeout: 100_000 }, async () => {
  const row = { prompt: 'say 0', answer: '', chat_template_kwargs: { enable_thinking: false, other: null } }
  const args = JSON.stringify({ dataset: [row] })
  const on = '{"chat_template_kwargs": {"enable_thinking": true}}'
  expect((await evaluated(['./even.ts', '-m', 'tiny', '-a', args, '-S', on])).prompt).toBe(PROMPT + THOUGHT)
  expect((await evaluated(['./even.ts', '-m', 'tiny', '-S', on])).prompt).toBe(PROMPT)
  const lines: string[] = []
  await checkEnvironment(runs.path('even.ts'), { args, model: runs.path('tiny') }, (line) => {
    lines.push(line)
  }).catch(() => {})
  expect(lines).toContain('  | <|user|>say 0<|end|><|assistant|>()')
  await expect(loadRows([{ ...row, chat_template_kwargs: 'off' as never }])).rejects.toThrow(
    'dataset row 0: its chat_template_kwargs must be an object, such as {"enable_thinking": false}, found "off".',
  )
  // What a config may not hold, a row may not either.
  await expect(loadRows([{ ...row, chat_template_kwargs: { messages: [] } }])).rejects.toThrow(
    'dataset row 0: chat_template_kwargs.messages is set for every prompt anyway. Remove it.',
  )
  await expect(loadRows([{ ...row, chat_template_kwargs: { enable_thinking: 'false' } }])).rejects.toThrow(
    'dataset row 0: chat_template_kwargs.enable_thinking is "false", a string, and templates take every string that is not empty as true. Write false.',
  )
})

test('env check shows the prompt that a run with them has', async () => {
  const lines: string[] = []
  const check = async (chatTemplateKwargs: string) =>
    await checkEnvironment(runs.path('even.ts'), { args: '{}', model: runs.path('tiny'), chatTemplateKwargs }, (line) => {
      lines.push(line)
    })
  await check(JSON.stringify(off))
  expect(lines).toContain('  | <|user|>say 0<|end|><|assistant|>()')
  await expect(check('{"enable_thinking": "false"}')).rejects.toThrow(
    'a string, and templates take every string that is not empty as true',
  )
})
