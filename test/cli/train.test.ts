/** `node train.js` as a user runs it, on a model of random weights: what it writes, what it repeats, how it ends. */
import { cpSync, existsSync, readFileSync, readdirSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parse } from 'smol-toml'
import { beforeAll, describe, expect, test } from 'vitest'
import { parseConfig } from '../../src/config/load.ts'
import { openModel } from '../../src/model/files/open.ts'
import { checkAdapter, readAdapter } from '../../src/model/files/peft.ts'
import { readMetrics } from '../../src/monitor/metrics-writer.ts'
import { metricInfo } from '../../src/monitor/metrics-table.ts'
import { brokenBecause } from '../../src/trainer/checkpoint.ts'
import { TinyRuns, type Outcome } from './tiny-run.ts'
import { asPosix, posixOnly } from '../windows.ts'

const runs = new TinyRuns()
const distillation = fileURLToPath(new URL('../../configs/losses/on-policy-distillation.ts', import.meta.url))
const ppoClip = fileURLToPath(new URL('../../configs/losses/ppo-clip.ts', import.meta.url))
const inTurns = [
  'max_async_level=0',
  'eval_strategy=steps',
  'eval_steps=2',
  'save_steps=2',
  'eval_temperature=0',
  'beta=0.05',
  'ref_model_sync_steps=2',
]
const adapterOf = (run: string, step: number) =>
  readFileSync(runs.path('outputs', run, `checkpoints/step_${step}/adapter_model.safetensors`))
const whole = (run: string, step: number) => brokenBecause(runs.path('outputs', run, 'checkpoints', `step_${step}`)) === undefined
const good = (outcome: Outcome) => expect(outcome, outcome.stderr + outcome.stdout).toMatchObject({ code: 0 })

// The first run compiles every kernel, which takes a while where the driver has no cache of them yet.
let whole4: Outcome
beforeAll(async () => {
  await runs.prepare()
  whole4 = await runs.run(['run_name=whole', 'max_steps=4', ...inTurns])
}, 400_000)

describe('a run in turns (max_async_level = 0)', () => {
  test('ends well and says what came of it', () => {
    good(whole4)
    for (const text of ['adapter  ', 'run      outputs/whole', 'step 4/4 | reward', 'What was learned', 'Where the files are', 'outputs/whole/checkpoints/step_4'])
      expect(whole4.stdout).toContain(text) // prettier-ignore
    expect(whole4.stdout).not.toContain('\x1b[')
  })

  test('config.toml reads back to the same run', () => {
    const path = runs.path('outputs/whole/config.toml')
    const here = process.cwd()
    process.chdir(runs.dir)
    try {
      const { config, notices } = parseConfig(readFileSync(path, 'utf8'), path)
      expect(config.trainer.args).toMatchObject({
        run_name: 'whole',
        max_steps: 4,
        max_async_level: 0,
        eval_temperature: 0,
        lora_rank: 4,
      })
      expect(notices.filter((line) => line.includes('no effect'))).toEqual([])
    } finally {
      process.chdir(here)
    }
  })

  test('metrics: a row a step, every key in the table, nothing but 0 between sampler and trainer', () => {
    const rows = runs.rows('whole', 'metrics.jsonl')
    expect(rows.map((row) => row.step)).toEqual([0, 1, 2, 3, 4])
    const unknown = rows.flatMap((row) => Object.keys(row).filter((key) => !['step', 'time'].includes(key) && !metricInfo(key)))
    expect(unknown).toEqual([])
    for (const row of rows.slice(1)) {
      expect(row).toMatchObject({ 'mismatch_kl/all/mean': 0, 'mismatch_kl/all/max': 0, importance_ratio: 1, 'off_policy/max': 0 })
      expect(row['optim/grad_norm']).toBeGreaterThan(0)
      expect(row['perf/peak_memory']).toBe(rows[1]['perf/peak_memory'])
    }
    // Step 2 ends with an evaluation, which reads back sizes of its own.
    expect(rows[4]['perf/buffers_made'], 'nothing is allocated in a step').toBe(rows[3]['perf/buffers_made'])
    expect(rows.filter((row) => 'eval/even/avg@1' in row).map((row) => row.step)).toEqual([0, 2, 4])
    // beta: the first step's policy is the reference, and that of the third, before which it was moved on; the others are not.
    const refKl = rows.slice(1).map((row) => row['ref_kl/all/mean'] as number)
    expect(refKl.map((value) => value > 0)).toEqual([false, true, false, true])
    expect(whole4.stdout).toContain('reference updated to the weights of step 2')
    expect(existsSync(runs.path('outputs/whole/checkpoints/step_4/reference/adapter_model.safetensors'))).toBe(true)
  })

  test('rollouts: all of them, with tokens, rewards and advantages', () => {
    const rows = runs.rows('whole', 'rollouts/step_2.jsonl')
    const tokens = runs.rows('whole', 'rollouts/step_2.tokens.jsonl')
    expect(rows.map((row) => row.split)).toEqual(['eval', 'eval', ...Array.from({ length: 8 }, () => 'train')])
    expect(tokens).toHaveLength(10)
    const train = rows.filter((row) => row.split === 'train')
    expect(train.every((row) => row.env === 'even' && typeof row.reward === 'number')).toBe(true)
    expect(train.reduce((sum, row) => sum + (row.advantage as number), 0)).toBeCloseTo(0)
    expect(tokens.every((row) => (row.completion_ids as number[]).length === (row.logprobs as number[]).length)).toBe(true)
  })

  test('eval_temperature 0 is greedy: the same answer before any training to every seed', () => {
    const rows = runs.rows('whole', 'rollouts/step_0.jsonl')
    expect(rows).toHaveLength(2)
    expect(rows.every((row) => row.split === 'eval' && row.advantage === null)).toBe(true)
  })

  test('the checkpoint is an adapter of this model, and the weights moved', async () => {
    expect(readdirSync(runs.path('outputs/whole/checkpoints')).toSorted()).toEqual(['step_2', 'step_4'])
    const model = await openModel(runs.path('tiny'))
    const adapter = await readAdapter(runs.path('outputs/whole/checkpoints/step_4'))
    checkAdapter(adapter, model.config, model.name)
    model.close()
    expect(adapter.config).toMatchObject({ r: 4, loraAlpha: 32 })
    for (const { B } of adapter.tensors.values()) expect(B.some((value) => value !== 0)).toBe(true)
    expect(adapterOf('whole', 2).equals(adapterOf('whole', 4))).toBe(false)
  })

  test('interrupted after 2 steps and resumed, it gives the same bits', async () => {
    good(await runs.run(['run_name=halves', 'max_steps=2', ...inTurns]))
    expect(runs.numbers('halves')).toEqual(runs.numbers('whole').slice(0, 3))
    expect(adapterOf('halves', 2).equals(adapterOf('whole', 2))).toBe(true)
    const second = await runs.run(['run_name=halves', 'max_steps=4', ...inTurns, '--resume'])
    good(second)
    expect(second.stdout).toMatch(/resumed {2}step 2 from .*step_2/)
    expect(second.stdout).not.toContain('metrics.jsonl has no row')
    expect(runs.numbers('halves')).toEqual(runs.numbers('whole'))
    expect(adapterOf('halves', 4).equals(adapterOf('whole', 4))).toBe(true)
    // What was learned is told against the evaluation of the first process.
    const learned = (text: string) => text.slice(text.indexOf('What was learned'), text.indexOf('Where the files are'))
    expect(learned(second.stdout)).toBe(learned(whole4.stdout))
    expect(existsSync(runs.path('outputs/halves/config.attempt_1.toml'))).toBe(true)
    // Whoever takes max_steps for what is added is told.
    const added = await runs.run(['run_name=halves', 'max_steps=2', 'temperature=0.7', ...inTurns, '--resume'])
    good(added)
    expect(added.stdout).toContain(
      'config   changed since the last start: trainer.args.max_steps 4 -> 2, trainer.args.temperature 1 -> 0.7\n',
    )
    expect(added.stderr + added.stdout).toContain(
      "nothing is left to train: a run's steps continue from 4, and trainer.args.max_steps is 2.",
    )
    expect(added.stdout).toContain('--resume --trainer.args.max_steps 8')
    // A bit of the newest is not what was written: the one before it, and the same numbers.
    const moments = runs.path('outputs/halves/checkpoints/step_4/optimizer.safetensors')
    const bytes = readFileSync(moments)
    bytes[bytes.length - 1] ^= 64
    writeFileSync(moments, bytes)
    const again = await runs.run(['run_name=halves', 'max_steps=4', ...inTurns, '--resume'])
    good(again)
    expect(again.stdout).toMatch(
      /skipped .+step_4: optimizer\.safetensors has the right size, but its bytes are not the ones that were written/,
    )
    expect(adapterOf('halves', 4).equals(adapterOf('whole', 4))).toBe(true)
  })

  test('a resume that is refused leaves config.toml as it was', async () => {
    const before = readFileSync(runs.path('outputs/whole/config.toml'), 'utf8')
    const refused = await runs.run(['--resume', 'outputs/whole', 'lora_rank=8', ...inTurns])
    expect(refused, refused.stderr).toMatchObject({ code: 2 })
    expect(refused.stderr).toContain('in the shape [4, 32], but this run has it in [8, 32]')
    expect(readFileSync(runs.path('outputs/whole/config.toml'), 'utf8')).toBe(before)
  })

  test('a run that was copied goes on where it is, and so does its config.toml', async () => {
    cpSync(runs.path('outputs/whole'), runs.path('moved/copy'), { recursive: true })
    // Of its last row the copy has a half.
    const rows = runs.path('moved/copy/metrics.jsonl')
    truncateSync(rows, statSync(rows).size - 100)
    const outcome = await runs.run(['--resume', 'moved/copy', 'max_steps=5', ...inTurns])
    good(outcome)
    expect(outcome.stdout).toContain('warning: metrics.jsonl has no rows for 1 of the steps so far (the last of them is step 4)')
    expect(readMetrics(rows).map((row) => row.step)).toEqual([0, 1, 2, 3, 5])
    const file = runs.path('moved/copy/config.toml')
    expect(outcome.stdout).toContain(`train longer: node train.js @ ${asPosix(file)} --resume`)
    expect(outcome.stdout).toMatch(/serve --model \S+ --adapter learned=\S+copy\/checkpoints\/step_5\n/)
    const { args } = parse(readFileSync(file, 'utf8')).trainer as { args: Record<string, unknown> }
    expect([args.output_dir, args.run_name]).toEqual([runs.path('moved'), 'copy'])
  })
})

test('one step off-policy, two environments, a loss, an advantage and a filter of the user, whose groups are replaced', async () => {
  runs.write(
    'scaled.ts',
    'export default (group: { reward: number }[], { by }: { by: number }) => group.map((r) => (r.reward - 0.5) * by)',
  )
  runs.write('any.ts', "export default (group: { group: string }[]) => group.length > 2 && !group[0].group.endsWith('.0')")
  runs.write('run2.toml', `env = [{ id = "./even.ts", name = "even" }, { id = "./even.ts", name = "odd" }]\n`)
  const plugins = [`loss=${ppoClip}`, 'advantage=./scaled.ts', '--trainer.args.advantage_args.by', '2', 'filters=["./any.ts"]']
  const slips = ['--trainer.args.loss_args.clip_hihg', '0.3', '--trainer.args.loss_args.clip_low', '0.2']
  const outcome = await runs.run([
    '@',
    'run2.toml',
    'run_name=mix',
    'max_steps=3',
    'batch_size=16',
    'oversampling_factor=2',
    'num_iterations=2',
    ...plugins,
    ...slips,
  ])
  good(outcome)
  expect(outcome.stdout.match(/.* did not read it .*/g)).toEqual([
    `warning: trainer.args.loss_args.clip_hihg: ${asPosix(ppoClip)} did not read it in a trial with made-up numbers. If its name is misspelled, it has no effect.`,
  ])
  const rows = runs.rows('mix', 'metrics.jsonl')
  expect(rows.map((row) => row.step)).toEqual([1, 2, 3])
  for (const row of rows) expect(row['loss/clipped']).toBeGreaterThanOrEqual(0)
  expect(rows[0]['mismatch_kl/all/mean']).toBe(0)
  expect(rows.map((row) => row['off_policy/max'])).toEqual([0, 1, 1])
  // The ratio is over both updates by a batch, the mismatch before them; weights between the two are half a version on.
  expect(rows[0].importance_ratio).not.toBe(1)
  const tokens = [1, 2, 3].flatMap((step) => runs.rows('mix', `rollouts/step_${step}.tokens.jsonl`))
  const versions = tokens.flatMap((row) => row.versions as number[])
  expect(versions.filter((v) => !Number.isInteger(v * 2) || v < 0 || v > 2)).toEqual([])
  const rollouts = [1, 2, 3].flatMap((step) => runs.rows('mix', `rollouts/step_${step}.jsonl`))
  expect(new Set(rollouts.map((row) => row.env))).toEqual(new Set(['even', 'odd']))
  const turnedDown = rollouts.filter((row) => row.advantage === null)
  expect(turnedDown).toHaveLength(3 * (rollouts.length / 3 - 16))
  expect(rows.map((row) => row['discarded/mean'])).toEqual(rows.map(() => turnedDown.length / rollouts.length))
  for (const row of rollouts) if (row.advantage !== null) expect(row.advantage).toBeCloseTo(((row.reward as number) - 0.5) * 2)
})

test('an environment of weight 0 is evaluated beside the one that is trained on, and no task of it is trained on', async () => {
  runs.write('bench.ts', readFileSync(runs.path('even.ts'), 'utf8').replace("evalDataset: rows('held', 2)", 'evalSize: 0'))
  runs.write('bench.toml', `env = [{ id = "./bench.ts", name = "bench", weight = 0 }, { id = "./even.ts", name = "even" }]\n`)
  const outcome = await runs.run([
    '@',
    'bench.toml',
    'run_name=bench',
    'eval_strategy=steps',
    'eval_examples=4',
    'shuffle_dataset=false',
  ])
  good(outcome)
  expect(outcome.stdout).toMatch(/bench: reward .* before, .* after/)
  const rows = runs.rows('bench', 'metrics.jsonl')
  const evaluated = (name: string) => rows.filter((row) => `eval/${name}/avg@1` in row).map((row) => row.step)
  expect([evaluated('bench'), evaluated('even')]).toEqual([
    [0, 2],
    [0, 2],
  ])
  const rollouts = [0, 1, 2].flatMap((step) => runs.rows('bench', `rollouts/step_${step}.jsonl`))
  const count = (split: string, env: string) => rollouts.filter((row) => row.split === split && row.env === env).length
  expect([count('train', 'bench'), count('train', 'even')]).toEqual([0, 16])
  const order = rollouts.filter((row) => row.split === 'train').map((row) => row.example_id)
  expect(order).toEqual([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
  // All of its rows that eval_examples lets it play, since it holds none out.
  expect([count('eval', 'bench'), count('eval', 'even')]).toEqual([8, 4])
  // What is trained on is the same without it: a resume has nothing to say of it.
  const more = await runs.run(['run_name=bench', 'max_steps=3', '--resume'])
  good(more)
  expect(more.stdout).not.toContain('the environments were')
  expect(more.stdout).toContain('shuffle_dataset was false and is now true')
})

test('full fine-tuning writes a model that opens', async () => {
  const words = ['run_name=full', 'use_lora=false', 'learning_rate=1e-3', 'max_steps=1', '--model.name', './tiny']
  // With the sizes that are chosen by the machine, and small moments.
  const outcome = await runs.run([...words, 'micro_batch_tokens=auto', 'optim=adamw_8bit', 'use_ref_model=true'])
  good(outcome)
  expect(runs.rows('full', 'metrics.jsonl').at(-1)!['ref_kl/all/mean']).toBe(0)
  const resolved = readFileSync(runs.path('outputs/full/config.toml'), 'utf8')
  const tokens = /^micro_batch_tokens = (\d+)$/m.exec(resolved)?.[1]
  expect(outcome.stdout).toContain(`micro    micro_batch_tokens = ${tokens} ("auto"): needs about `)
  const dir = runs.path('outputs/full/checkpoints/step_1')
  const [before, after] = [await openModel(runs.path('tiny')), await openModel(dir)]
  expect(after.config).toEqual(before.config)
  const name = 'model.layers.0.mlp.up_proj.weight'
  expect(await after.tensors.read(name)).not.toEqual(await before.tensors.read(name))
  before.close()
  after.close()
})

test('on-policy distillation: a teacher in place of a reward', async () => {
  good(await runs.run(['run_name=teacher', 'use_lora=false', 'learning_rate=1e-2', 'max_steps=3', '--model.name', './tiny']))
  const teacher = 'outputs/teacher/checkpoints/step_3'
  const words = ['use_lora=false', 'learning_rate=1e-2', `loss=${distillation}`, 'filters=[]', 'rollouts_per_example=2']
  const outcome = await runs.run(['run_name=student', 'max_steps=8', `ref_model=${teacher}`, ...words])
  good(outcome)
  expect(outcome.stdout).toMatch(/reference step_3: [\d.]+ ?[kM]? weights, frozen/)
  const rows = runs.rows('student', 'metrics.jsonl')
  const refKl = rows.map((row) => row['ref_kl/all/mean'] as number)
  expect(refKl[0]).toBeGreaterThan(0)
  expect(refKl.at(-1)).toBeLessThan(refKl[0] / 2)
  expect(rows[0]['loss/reverse_kl']).toBeTypeOf('number')
  expect(rows.map((row) => row['discarded/mean'])).toEqual(rows.map(() => 0))
  // Of a run whose reference was moved on: from here the teacher is it.
  const taught = ['run_name=taught', 'max_steps=5', `ref_model=${teacher}`, 'ref_model_sync_steps=0']
  good(await runs.run([...taught, ...inTurns.slice(0, -1), '--fork', 'outputs/whole']))
  expect(runs.rows('taught', 'metrics.jsonl').at(-1)!['ref_kl/all/mean']).toBeGreaterThan(0)
  expect(existsSync(runs.path('outputs/taught/checkpoints/step_5/reference'))).toBe(false)
  const refused = await runs.run(['run_name=no', 'max_steps=1', 'ref_model=./nowhere'])
  expect(refused).toMatchObject({ code: 2 })
  expect(refused.stderr).toContain('trainer.args.ref_model: There is no model at ./nowhere')
})

test('model.adapter goes on from an adapter: what it samples first is what the other run sampled last', async () => {
  good(await runs.run(['run_name=on', 'max_steps=1', ...inTurns, '--model.adapter', 'outputs/whole/checkpoints/step_4']))
  const [before, last] = [runs.rows('on', 'rollouts/step_0.jsonl'), runs.rows('whole', 'rollouts/step_4.jsonl')]
  expect(before.map((row) => row.completion)).toEqual(last.filter((row) => row.split === 'eval').map((row) => row.completion))
  // The reference is the adapter that it began with, not the model without one.
  expect(runs.rows('on', 'metrics.jsonl').at(-1)!['ref_kl/all/mean']).toBe(0)
})

describe('ends', () => {
  /** Starts a run and calls back at the first output that matches. */
  async function when(pattern: RegExp, words: string[], act: (kill: () => void) => void): Promise<Outcome> {
    const { child, outcome } = runs.start(words)
    let [seen, acted] = ['', false]
    child.stdout!.on('data', (chunk) => {
      seen += chunk
      if (acted || !pattern.test(seen)) return
      acted = true
      act(() => child.kill('SIGINT'))
    })
    return await outcome
  }

  posixOnly('signals')('Ctrl-C once: the step ends, is saved, exit code 0; --resume goes on', async () => {
    const outcome = await when(/step +2\/5000/, ['run_name=stopped', 'max_steps=5000'], (kill) => kill())
    good(outcome)
    expect(outcome.stderr).toContain('SIGINT: the current step is finished and saved first; a second signal ends at once.')
    const last = runs.rows('stopped', 'metrics.jsonl').at(-1)!.step as number
    expect(last).toBeLessThan(5000)
    expect(outcome.stdout).toContain(`Stopped after step ${last} of 5000; it is saved.`)
    expect(whole('stopped', last)).toBe(true)
    const resumed = await runs.run(['run_name=stopped', `max_steps=${last + 1}`, '--resume'])
    good(resumed)
    expect(runs.rows('stopped', 'metrics.jsonl').map((row) => row.step)).toEqual(
      Array.from({ length: last + 1 }, (_, i) => i + 1),
    )
  })

  posixOnly('signals')('Ctrl-C in an evaluation: --resume makes it, once', async () => {
    runs.write(
      'slow.ts',
      `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
       let held = 0
       const reward = ({ prompt, completionIds }) => {
         if (!prompt.at(-1).content.startsWith('held') || ++held !== 3) return completionIds[0] % 7
         console.log('hangs')
         return new Promise(() => {})
       }
       const rows = (word) => [0, 1].map((i) => ({ prompt: word + ' ' + i, answer: '' }))
       export default () => SingleTurnEnv.create({ id: 'slow', rubric: new Rubric({ reward }), dataset: rows('say'), evalDataset: rows('held') })`,
    )
    const words = ['--env.id', './slow.ts', '--env.name', 'slow', 'run_name=slow', 'max_steps=1', 'eval_strategy=steps']
    const evaluated = () => runs.rows('slow', 'metrics.jsonl').map((row) => [row.step, 'eval/slow/avg@1' in row])
    const stopped = await when(/hangs/, words, (kill) => kill())
    good(stopped)
    expect(stopped.stdout).toContain('continue: node train.js @ outputs/slow/config.toml --resume')
    expect(evaluated()).toEqual([[0, true], [1, false]]) // prettier-ignore
    for (const _ of [1, 2]) {
      const resumed = await runs.run([...words, '--resume'])
      good(resumed)
      expect(resumed.stdout).not.toContain('continue: ')
      expect(evaluated()).toEqual([[0, true], [1, false], [1, true]]) // prettier-ignore
    }
  })

  test('a kill in the evaluation of a second environment: --resume makes that of the first again, and keeps its answers once', async () => {
    runs.write(
      'two.ts',
      `import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
       const reward = (hangs) => ({ prompt }) => {
         if (!hangs || !prompt.at(-1).content.startsWith('held')) return prompt.length
         console.log('it never ends')
         return new Promise(() => {})
       }
       const rows = (word) => [0, 1].map((i) => ({ prompt: word + ' ' + i, answer: '' }))
       export default ({ hangs }) =>
         SingleTurnEnv.create({ id: 'two', rubric: new Rubric({ reward: reward(hangs) }), dataset: rows('say'), evalDataset: rows('held') })`,
    )
    runs.write('two.toml', ['a', 'b'].map((name) => `[[env]]\nid = "./two.ts"\nname = "${name}"\n`).join(''))
    const words = ['@', 'two.toml', 'run_name=two', 'max_steps=1']
    good(await runs.run([...words, 'eval_strategy=no']))
    const killed = runs.start([...words, 'eval_strategy=steps', '--resume', '--env.1.args.hangs', 'true'])
    killed.child.stdout!.on('data', (text) => String(text).includes('never ends') && killed.child.kill('SIGKILL'))
    await killed.outcome
    const answers = (file: string) => runs.rows('two', file).filter(({ split }) => split === 'eval').map(({ group, index }) => [group, index].join(' ')) // prettier-ignore
    expect(answers('rollouts/step_1.jsonl')).toEqual(['eval 1.a.0 0', 'eval 1.a.1 0'])
    good(await runs.run([...words, 'eval_strategy=steps', '--resume']))
    for (const file of ['rollouts/step_1.jsonl', 'rollouts/step_1.tokens.jsonl'])
      expect(answers(file)).toEqual(['eval 1.a.0 0', 'eval 1.a.1 0', 'eval 1.b.0 0', 'eval 1.b.1 0'])
    expect(runs.rows('two', 'rollouts/step_1.jsonl').filter(({ split }) => split === 'train')).toHaveLength(8)
  })

  posixOnly('signals')('Ctrl-C twice ends at once', async () => {
    const hangs = ['--env.args.hangs', 'true', 'run_name=twice']
    const outcome = await when(/memory /, hangs, (kill) => [500, 1000].forEach((ms) => setTimeout(kill, ms)))
    expect(outcome.code).toBe(130)
  })

  test('three steps that are not finite: a learning rate or a loss to mend, exit code 2, and the last good weights are kept', async () => {
    runs.write(
      'broken-loss.ts',
      `export const checkGradient = false
       let calls = 0
       export default (x) => ({ gradient: x.lossMask.reduce((g, m, t) => (g[t] = m ? (calls > 9 ? NaN : 0.1) : 0, g), new Float32Array(x.lossMask.length)), loss: 0, metrics: { calls: ++calls } })`,
    )
    const outcome = await runs.run([
      'run_name=nan',
      'loss=./broken-loss.ts',
      'max_steps=9',
      'max_async_level=0',
      '--model.name',
      './tiny',
    ])
    expect(outcome).toMatchObject({ code: 2 })
    expect(outcome.stderr).toContain('3 steps in a row were not finite')
    expect(outcome.stderr).not.toContain('error in dawn-rl')
    expect(outcome.stdout).toContain('warning: an error ends the run; step')
    const steps = readdirSync(runs.path('outputs/nan/checkpoints'))
    expect(steps).toHaveLength(1)
    const adapter = await readAdapter(runs.path('outputs/nan/checkpoints', steps[0]))
    expect(adapter.config.baseModel).toBe('./tiny') // where PEFT finds it
    for (const { A, B } of adapter.tensors.values()) expect([...A, ...B].every(Number.isFinite)).toBe(true)
    expect(readdirSync(runs.path('outputs/nan')).filter((name) => name.startsWith('nan_step_'))).toHaveLength(3)
  })

  test('a judge that is away: the first reason, exit code 2', async () => {
    const outcome = await runs.run(['run_name=away', '--env.args.fails', 'true'])
    expect(outcome).toMatchObject({ code: 2 })
    expect(outcome.stderr).toContain(
      'All 8 rollouts of step 1 failed. The first error: reward function "even" threw: the judge is away (even.ts:5:27).',
    )
    expect(runs.runs()).not.toContain('away')
  })

  test('a run folder is never overwritten', async () => {
    const outcome = await runs.run(['run_name=whole'])
    expect(outcome).toMatchObject({ code: 2, stdout: '' })
    expect(outcome.stderr).toContain(
      'outputs/whole already holds a run: choose another run_name, continue it with --resume, or delete the folder.',
    )
    expect(runs.rows('whole', 'metrics.jsonl')).toHaveLength(5)
  })

  test('--dry-run prints config and memory, and starts nothing', async () => {
    const before = runs.runs()
    const outcome = await runs.run(['run_name=dry', '--dry-run'])
    good(outcome)
    expect(runs.runs()).toEqual(before)
    expect(outcome.stdout).toMatch(/# GPU memory for tiny\n(# .*\n)+# *total +\d/)
    expect(outcome.stdout).toContain('# 2 tasks x 4 rollouts = 8 rollouts a step')
    const here = process.cwd()
    process.chdir(runs.dir)
    try {
      expect(parseConfig(outcome.stdout).config.trainer.args.run_name).toBe('dry')
    } finally {
      process.chdir(here)
    }
  })
})
