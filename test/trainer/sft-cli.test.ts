/** `cli.js sft` as one runs it: a real process, real files. */
import { spawn, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { expect, test } from 'vitest'
import { openModel } from '../../src/model/files/open.ts'
import { readAdapter } from '../../src/model/files/peft.ts'
import type { TimelineRow } from '../../src/monitor/timeline-writer.ts'
import { renamesAsWindows } from '../renames.ts'
import { tempFolder } from './helpers.ts'
import { isWindows } from '../windows.ts'

const folder = tempFolder()
const root = resolve('.')

const sft = (...words: string[]) => sftWith({}, ...words)

function sftWith(
  env: NodeJS.ProcessEnv,
  ...given: (string | ((said: string) => void))[]
): Promise<{ code: number | null; text: string }> {
  const words = given.filter((word) => typeof word === 'string')
  const heard = given.find((word) => typeof word === 'function')
  const child = spawn(process.execPath, [join(root, 'cli.js'), 'sft', ...words], {
    cwd: root,
    env: {
      ...process.env,
      NO_COLOR: '1',
      ...env,
      NODE_OPTIONS: [process.env.NODE_OPTIONS, env.NODE_OPTIONS].filter(Boolean).join(' '),
    },
  })
  let text = ''
  child.stdout.on('data', (d: Buffer) => (text += d.toString()))
  if (env.STOP_AT) child.stdout.on('data', () => text.includes(env.STOP_AT!) && !child.killed && child.kill('SIGINT'))
  if (heard) child.stdout.on('data', () => heard(text))
  child.stderr.on('data', (d: Buffer) => (text += d.toString()))
  return new Promise((done) => child.on('close', (code) => done({ code, text })))
}

const write = (name: string, text: string): string => {
  mkdirSync(folder, { recursive: true })
  writeFileSync(join(folder, name), text)
  return join(folder, name)
}
const rowsOf = <Row>(run: string, file: string) =>
  readFileSync(join(folder, 'out', run, file), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as Row)
const metrics = (run: string) => rowsOf<Record<string, number>>(run, 'metrics.jsonl')
const timeline = (run: string) => rowsOf<TimelineRow>(run, 'logs/timeline.jsonl')

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
/** Has the device from the module that makes it, and destroys it once the sixth row of metrics is on the disk. */
const losesDevice = `
  import fs, { readlinkSync } from 'node:fs'
  import { syncBuiltinESMExports } from 'node:module'
  import { globals } from '${import.meta.resolve('webgpu')}'
  const { prototype } = globals.GPUAdapter
  const open = prototype.requestDevice
  let [device, rows] = [undefined, 0]
  prototype.requestDevice = async function (...words) {
    const opened = await open.apply(this, words)
    // Not one of those that only compile.
    if (words[0].label === 'dawn-rl') device = opened
    return opened
  }
  const { fsyncSync } = fs
  fs.fsyncSync = (fd) => {
    fsyncSync(fd)
    if (readlinkSync('/proc/self/fd/' + fd).endsWith('metrics.jsonl') && ++rows === 6) device.destroy()
  }
  syncBuiltinESMExports()`
const data = () => {
  const rows = Array.from('abcdefgh', (c) => c).map((c, i) =>
    i % 2 ? { prompt: c, completion: c.toUpperCase() } : { messages: [{ role: 'user', content: c }, { role: 'assistant', content: c.toUpperCase() }] },
  ) // prettier-ignore
  return write('data.jsonl', rows.map((row) => JSON.stringify(row)).join('\n'))
}

test('saves into the folder that the model came from, where no file is open then: Windows renames none with one', async () => {
  const own = join(folder, 'own')
  cpSync(join(root, 'models/tiny'), own, { recursive: true })
  const args = `use_lora = false\nmax_steps = 1\nsave_to = ${JSON.stringify(own)}`
  const saved = await sftWith(
    renamesAsWindows,
    '@',
    config('own.toml', `model = ${JSON.stringify(own)}`, args),
    '--run-name',
    'own',
  )
  expect(saved.code, saved.text).toBe(0)
  expect(saved.text).toContain(`model: ${own}`)
})

test('makes a model from nothing, goes on where it stopped with the same numbers, and trains an adapter on what it made', async () => {
  const made = join(folder, 'made')
  const all = `use_lora = false\nmax_steps = 8\nsave_to = ${JSON.stringify(made)}`
  const straight = await sft('@', config('a.toml', newModel, all), '--run-name', 'straight')
  expect(straight.code, straight.text).toBe(0)
  expect(straight.text).toMatch(/step 1\/8 \| loss 5\.\d+ \| entropy/)
  expect(straight.text).toContain(`model: ${made}`)
  expect(straight.text).toMatch(/continue with reinforcement learning: .* --model \S+$/m)
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

  // What was set aside is made again, and gone.
  expect(readdirSync(join(folder, 'out/straight/checkpoints')).toSorted()).toEqual(['step_4', 'step_8'])
  // Who ran when, once for each step, though four of them were made twice.
  const times = timeline('straight')
  expect(times.map((row) => row.step)).toEqual([1, 2, 3, 4, 5, 6, 7, 8])
  for (const { step, spans } of times) {
    const names = spans.map(([, name]) => name).filter((name) => !name.startsWith('micro-batch'))
    expect(names).toEqual(['gradients', 'optimizer', 'log', ...(step % 4 === 0 ? ['save_ckpt'] : [])])
  }

  // A device that is lost after its sixth step: opened again, and on from the fourth, to the same numbers.
  if (process.platform === 'linux') {
    const hook = write('lose.mjs', losesDevice)
    const env = { NODE_OPTIONS: `--import=${pathToFileURL(hook).href}` }
    const lost = await sftWith(env, '@', join(folder, 'a.toml'), '--run-name', 'lost')
    expect(lost.code, lost.text).toBe(0)
    expect(lost.text).toMatch(/the GPU device was lost \(destroyed\): .+ opened again in 1 s, .+ \(attempt 1 of 3\)/)
    expect(lost.text).toMatch(/resumed {2}step 4 from .*step_4/)
    expect(metrics('lost').map((r) => [r.step, r['loss/mean'], r['optim/grad_norm']])).toEqual(
      rows.map((r) => [r.step, r['loss/mean'], r['optim/grad_norm']]),
    )
    expect(timeline('lost').map((row) => row.step)).toEqual([1, 2, 3, 4, 5, 6, 7, 8])
  }

  const adapted = await sft(
    '@',
    config(
      'b.toml',
      `model = ${JSON.stringify(made)}`,
      `max_steps = 2\nlora_rank = 4\nlora_dropout = 0.1\nmicro_batch_tokens = "auto"\nsave_to = ${JSON.stringify(join(folder, 'lora'))}`,
    ),
    '--run-name',
    'adapter',
  )
  expect(adapted.code, adapted.text).toBe(0)
  expect(adapted.text).toContain('micro    micro_batch_tokens = 256 ("auto")')
  expect(adapted.text).toContain(`adapter: ${join(folder, 'lora')}`)
  expect(adapted.text).toMatch(/continue with reinforcement learning: .* --model\.name \S+ --model\.adapter \S+lora'?$/m)
  const adapter = await readAdapter(join(folder, 'out/adapter/checkpoints/step_2'))
  expect(adapter.config).toMatchObject({ r: 4, loraAlpha: 32, baseModel: made })

  // It is gone on from as what it is, as a run of reinforcement does.
  const on = ['--model.adapter', adapter.dir, '--trainer.args.lora_rank', '8', '--run-name', 'other-rank']
  const refused = await sft('@', join(folder, 'b.toml'), ...on)
  expect([refused.code, refused.text]).toEqual([2, expect.stringContaining('was made with lora_rank = 4, but this config says')])
  expect(existsSync(join(folder, 'out/other-rank'))).toBe(false)
})

test.skipIf(isWindows)(
  'a folder that was deleted, and whose name another run has taken: no row of this run goes into that one',
  async () => {
    const file = config('taken.toml', newModel, 'max_steps = 500\nlogging_steps = 20')
    const [run, gone, other] = ['taken', 'gone', 'other'].map((name) => join(folder, 'out', name))
    mkdirSync(other, { recursive: true })
    for (const name of ['config.toml', 'metrics.jsonl']) writeFileSync(join(other, name), '')
    writeFileSync(join(other, 'run.lock'), '{"pid":1,"host":"elsewhere","started":null,"since":"now"}')
    let taken = false
    const { code, text } = await sftWith({}, '@', file, '--run-name', 'taken', '--trainer.ckpt.interval', '0', (said) => {
      if (taken || !said.includes('step  20/500')) return
      taken = true
      renameSync(run, gone)
      renameSync(other, run)
      rmSync(gone, { recursive: true })
    })
    expect(code, text).toBe(1)
    expect(text).toContain(`The run folder ${run} now belongs to another run`)
    expect(readFileSync(join(run, 'metrics.jsonl'), 'utf8')).toBe('')
  },
)

test('the loss on held-out examples says of which step it is, and is computed once where no step is left; examples beyond the context are told', async () => {
  const path = config('held.toml', `${newModel}max_position_embeddings = 16\n`, 'use_lora = false\nmax_steps = 1')
  const text = readFileSync(path, 'utf8').replace(
    /path = .+/,
    'max_examples = 4\nenv = { id = "reverse-text", args = { eval_size = 2 } }',
  )
  write('held.toml', text)
  const lines = async (...words: string[]) => {
    const { code, text } = await sft('@', path, '--run-name', 'held', ...words)
    expect(code, text).toBe(0)
    expect(text).toMatch(/warning: an example has \d\d tokens; .+ was made for 16 at most\./)
    return text.match(/held-out loss .+?(?= \d+\.)/g)
  }
  expect(await lines()).toEqual(['held-out loss before training', 'held-out loss after training'])
  expect(await lines('--resume')).toEqual(['held-out loss at step 1'])

  if (isWindows) return // No process can ask another one there.
  // Asked to stop it ends with its step, and says how to go on.
  const on = ['@', path, '--run-name', 'held', '--resume', '--trainer.args.max_steps', '9']
  const stopped = await sftWith({ STOP_AT: 'held-out loss at' }, ...on)
  expect(stopped.code, stopped.text).toBe(0)
  expect(stopped.text).toMatch(
    /stopped after step [2-8] of 9; to continue: node cli\.js sft (?:@|"@") \S+config\.toml"? --resume\n/,
  )
  expect(stopped.text).not.toContain('after training')
})

test('stopped before its first step, a run leaves no folder that would block its name', async () => {
  const early = write(
    'early.ts',
    `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
     export default () => {
       process.kill(process.pid, 'SIGINT')
       return SingleTurnEnv.create({ id: 'early', rubric: new Rubric({ any: () => 1 }), dataset: [...'abcd'].map((c) => ({ prompt: c, answer: c })) })
     }`,
  )
  const args = `run_name = "early"\noutput_dir = ${JSON.stringify(join(folder, 'out'))}\nuse_lora = false\nbatch_size = 1\nmax_steps = 2\nmax_seq_len = 64`
  const file = write('early.toml', `${newModel}\n[data.env]\nid = ${JSON.stringify(early)}\n[trainer.args]\n${args}\n`)
  const { code, text } = await sft('@', file)
  expect(text).toContain('Stopped before the first step was done: there is nothing to resume.\n')
  expect(code, text).toBe(0)
  expect(existsSync(join(folder, 'out', 'early'))).toBe(false)
})

test('a token that the tokenizer has and the model has not is refused', async () => {
  const model = join(folder, 'more-tokens')
  cpSync(join(root, 'models/tiny'), model, { recursive: true })
  const path = join(model, 'tokenizer.json')
  const tokenizer = JSON.parse(readFileSync(path, 'utf8')) as { added_tokens: { id: number; content: string }[] }
  tokenizer.added_tokens.push({ ...tokenizer.added_tokens[0], id: 262, content: '<|extra|>' })
  writeFileSync(path, JSON.stringify(tokenizer))
  const file = config('more.toml', `model = ${JSON.stringify(model)}`, 'use_lora = false\nmax_steps = 1')
  write('extra.jsonl', '{"prompt": "a", "completion": "b<|extra|>c"}\n')
  const { code, text } = await sft('@', file, '--run-name', 'more', '--data.path', join(folder, 'extra.jsonl'))
  expect(text).toContain(
    'An example has token 262 ("<|extra|>"), and more-tokens has only 262 tokens (vocab_size in its config.json)',
  )
  expect(code).toBe(2)
})

const canMount = spawnSync('unshare', ['-rm', 'sh', '-c', 'mount -t tmpfs -o size=1m t /mnt']).status === 0
test.skipIf(!canMount)('a disk that has no room for the finished model: the run waits for room', () => {
  const path = config('full.toml', newModel, 'use_lora = false\nmax_steps = 1')
  const script = write(
    'full.sh',
    `cd '${folder}' && mkdir disk && mount -t tmpfs -o size=1m t disk
dd if=/dev/zero of=disk/ballast bs=1k count=9000 2> /dev/null
"$@" > full.out 2>&1 &
pid=$!
until grep -q 'no room for' full.out || ! kill -0 $pid; do sleep 0.05; done
rm disk/ballast
wait $pid; echo "code $?"; ls disk/model`,
  )
  const words = [join(root, 'cli.js'), 'sft', '@', path, '--run-name', 'full', '--save-to', join(folder, 'disk/model')]
  const { stdout } = spawnSync('unshare', ['-rm', 'bash', script, process.execPath, ...words], { encoding: 'utf8' })
  const said = readFileSync(join(folder, 'full.out'), 'utf8')
  expect(said).toMatch(/warning: the disk is full: no room for \S+\/disk\/model\. The run waits/)
  expect([stdout, said]).toEqual([expect.stringMatching(/^code 0\n.*model\.safetensors/s), expect.any(String)])
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
