/** What a run does when something breaks, each thing broken for real: docs/reliability.md, "Faults". */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { beforeAll, expect, onTestFinished, test } from 'vitest'
import { readAdapter } from '../../src/model/files/peft.ts'
import { brokenBecause } from '../../src/trainer/checkpoint.ts'
import { behind } from '../windows.ts'
import { TinyRuns, type Outcome } from './tiny-run.ts'

const runs = new TinyRuns()
const root = fileURLToPath(new URL('../..', import.meta.url))
const inTurns = ['max_async_level=0', 'save_steps=2']
const adapterOf = (run: string, step: number) =>
  readFileSync(runs.path('outputs', run, `checkpoints/step_${step}/adapter_model.safetensors`))
const isWhole = (run: string, step: number) =>
  brokenBecause(runs.path('outputs', run, 'checkpoints', `step_${step}`)) === undefined
const good = (outcome: Outcome) => expect(outcome, outcome.stderr + outcome.stdout).toMatchObject({ code: 0 })
const stepsOf = (run: string) => runs.rows(run, 'metrics.jsonl').map((row) => row.step)

/** The reward of tiny-run.ts; `act` is code that sees how many answers were scored before (`calls`). */
const environment = (act: string) => `
import { existsSync } from 'node:fs'
import { Rubric, SingleTurnEnv } from 'dawn-rl/environments'
let calls = 0
export default () => {
  const rubric = new Rubric({ even: async ({ completionIds }) => {
    calls++
    ${act}
    return completionIds.filter((id) => id % 2 === 0).length / completionIds.length
  } })
  const rows = (word, n) => Array.from({ length: n }, (_, i) => ({ prompt: word + ' ' + i, answer: String(i) }))
  return SingleTurnEnv.create({ id: 'even', rubric, dataset: rows('say', 5), evalDataset: rows('held', 2) })
}
`

/** Writes down the path of each file and folder that the process waits for the disk to have, in their order. */
const settled = `
  import fs, { appendFileSync, readlinkSync } from 'node:fs'
  import { open } from 'node:fs/promises'
  import { syncBuiltinESMExports } from 'node:module'
  const note = (fd) => appendFileSync('settled.txt', readlinkSync('/proc/self/fd/' + fd) + '\\n')
  const { fsyncSync } = fs
  fs.fsyncSync = (fd) => { fsyncSync(fd); note(fd) }
  syncBuiltinESMExports()
  const handle = await open(import.meta.filename)
  const { prototype } = handle.constructor
  for (const name of ['sync', 'datasync']) {
    const work = prototype[name]
    prototype[name] = async function () { await work.call(this); note(this.fd) }
  }
  await handle.close()`
const hasFds = process.platform === 'linux'

// The first run compiles every kernel, which takes a while where the driver has no cache of them yet.
beforeAll(async () => {
  await runs.prepare()
  const hook = runs.write('settled.mjs', settled)
  const env = hasFds ? { NODE_OPTIONS: `--import=${new URL(`file://${hook}`).href}` } : {}
  good(await runs.run(['run_name=whole', 'max_steps=4', ...inTurns], env))
}, 400_000)

test.skipIf(!hasFds)('power that fails after a checkpoint is whole: the disk had all that it counts on before it was', () => {
  const run = realpathSync(runs.path('outputs/whole'))
  const lines = readFileSync(runs.path('settled.txt'), 'utf8').split('\n')
  const paths = lines.map((path) => (path.startsWith(`${run}/`) ? path.slice(run.length + 1) : path))
  for (const step of [2, 4]) {
    const whole = paths.findIndex((path) => new RegExp(`^checkpoints/step_${step}\\.partial-\\d+/STABLE`).test(path))
    expect(whole).toBeGreaterThan(0)
    const before = paths.slice(0, whole)
    for (let n = 1; n <= step; n++)
      expect(before).toEqual(expect.arrayContaining([`rollouts/step_${n}.jsonl`, `rollouts/step_${n}.tokens.jsonl`]))
    expect(before).toEqual(expect.arrayContaining([run, 'rollouts', 'metrics.jsonl']))
    // Once a checkpoint, and not once a step.
    expect(before.filter((path) => path === 'rollouts')).toHaveLength(step / 2)
  }
})

test('a device that is lost: opened again, and the numbers of a run that lost none', async () => {
  // The environment has the device from the module that makes it, and destroys it under the run in its third step.
  const dawn = import.meta.resolve('webgpu')
  const hook = runs.write(
    'hook.mjs',
    `import { globals } from '${dawn}'
     const { prototype } = globals.GPUAdapter
     const open = prototype.requestDevice
     prototype.requestDevice = async function (...words) {
       const opened = await open.apply(this, words)
       // Not one of those that only compile.
       if (words[0].label === 'dawn-rl') globalThis.device = opened
       return opened
     }`,
  )
  runs.write('lose.ts', environment('if (calls === 19) globalThis.device.destroy()'))
  // A trace of its first step is not asked of it again.
  const words = ['run_name=lost', 'max_steps=4', ...inTurns, '--env.id', './lose.ts', '--trace', '1', 'passes']
  const outcome = await runs.run(words, { NODE_OPTIONS: `--import=${new URL(`file://${hook}`).href}` })
  good(outcome)
  expect(outcome.stderr).toMatch(/the GPU device was lost \(destroyed\): .+ opened again in 1 s, .+ \(attempt 1 of 3\)/)
  expect(outcome.stdout).toMatch(/resumed {2}step 2 from .*step_2/)
  expect(runs.numbers('lost')).toEqual(runs.numbers('whole'))
  expect(adapterOf('lost', 4).equals(adapterOf('whole', 4))).toBe(true)
})

test('GPU memory of a limit: smaller micro-batches, said once; a limit below the weights is refused', async () => {
  const words = ['max_steps=2', 'max_async_level=0', 'batch_size=32', 'micro_batch_tokens=512']
  const outcome = await runs.run(['run_name=small', ...words, 'gpu_memory=0.0012'])
  good(outcome)
  expect(outcome.stdout.match(/warning: .+ needs .+ of GPU memory.+micro_batch_tokens = \d+\./g)).toHaveLength(1)
  expect(stepsOf('small')).toEqual([1, 2])
  // The run goes on in them: it does not try again what did not fit.
  const [, tokens] = /micro_batch_tokens = (\d+)\./.exec(outcome.stdout)!
  const resumed = await runs.run(['run_name=small', ...words, 'max_steps=3', 'gpu_memory=0.0012', '--resume'])
  good(resumed)
  expect(resumed.stdout).toContain(`micro    ${tokens} tokens: more did not fit into memory before.`)
  expect(resumed.stdout).not.toContain('of GPU memory')
  expect(stepsOf('small')).toEqual([1, 2, 3])
  const refused = await runs.run(['run_name=none', ...words, 'gpu_memory=0.0002'])
  expect(refused).toMatchObject({ code: 2 })
  expect(refused.stderr).toMatch(/The run does not fit into memory, even before its first step: .+ of GPU memory/)
  expect(existsSync(runs.path('outputs/none'))).toBe(false)
})

test('a loss that is not finite in one step, and nobody who reads the output: the step is skipped, the run goes on to its end', async () => {
  runs.write(
    'nan-once.ts',
    `export const checkGradient = false
     export default (x) => {
       const value = x.rollout?.group.startsWith('2.') ? NaN : 0.1
       return { gradient: Float32Array.from(x.lossMask, (m) => m * value), loss: 0 }
     }`,
  )
  const { child, outcome } = runs.start(['run_name=nan', 'max_steps=4', 'max_async_level=0', 'loss=./nan-once.ts'])
  // As \`| head -1\` does.
  child.stdout!.once('data', () => child.stdout!.destroy())
  const { code, stderr } = await outcome
  expect({ code, stderr }).toMatchObject({ code: 0 })
  expect(runs.rows('nan', 'metrics.jsonl').map((row) => row['optim/grad_norm'] === null)).toEqual([false, true, false, false])
  const log = readFileSync(behind(runs.path('outputs/nan/logs/latest')), 'utf8')
  expect(log.match(/step \d was not finite and is skipped: .+ nan_step_\d\//g)).toEqual([expect.stringContaining('step 2')])
  expect(readdirSync(runs.path('outputs/nan')).filter((name) => name.startsWith('nan_'))).toEqual(['nan_step_2'])
  const { tensors } = await readAdapter(runs.path('outputs/nan/checkpoints/step_4'))
  for (const { A, B } of tensors.values()) expect([...A, ...B].every(Number.isFinite)).toBe(true)
})

test.runIf(process.platform === 'linux')('output to a file on a disk that is full: the run goes on to its end', () => {
  const command = `'${process.execPath}' '${root}/train.js' @ run.toml --run-name unheard >/dev/full 2>&1`
  const { status } = spawnSync('bash', ['-c', command], { cwd: runs.dir, timeout: 120_000, killSignal: 'SIGKILL' })
  expect(status).toBe(0)
  expect(stepsOf('unheard')).toEqual([1, 2])
})

test('rewards that never come: the rollout fails by its limit and the step goes on; where all fail it is played again', async () => {
  // One in the second step, and all when the third is played first.
  runs.write('hang.ts', environment('if (calls === 10 || (calls > 16 && calls < 25)) await new Promise(() => {})'))
  const words = ['run_name=hang', 'max_steps=3', 'max_async_level=0', 'reward_timeout=1.5', '--env.id', './hang.ts']
  const outcome = await runs.run(words)
  good(outcome)
  expect(outcome.stdout).toMatch(
    /All 8 rollouts of step 3 failed\. The first error: .*limit of 1\.5 s\. Raise trainer\.args\.reward_timeout\. They are tried again in 3 s \(try 2 of 6\)/,
  )
  expect(stepsOf('hang')).toEqual([1, 2, 3])
  const failed = runs.rows('hang', 'rollouts/step_2.jsonl').filter((row) => row.reward === null)
  expect(failed).toHaveLength(1)
  expect(JSON.stringify(failed[0].error)).toContain('limit of 1.5 s')
  const third = runs.rows('hang', 'rollouts/step_3.jsonl')
  expect(third.filter((row) => row.reward !== null)).toHaveLength(8)
  expect(third).toHaveLength(8)
})

test('a promise of a reward that fails where nobody waits for it: the step is finished and saved', async () => {
  runs.write('stray.ts', environment("if (calls === 12) void (async () => { throw new Error('the log is away') })()"))
  const { code, stderr } = await runs.run(['run_name=stray', 'max_steps=6', 'max_async_level=0', '--env.id', './stray.ts'])
  // The user's code, not ours.
  expect(code).toBe(2)
  expect(stderr).not.toContain('not in your input')
  expect(stderr).toMatch(/\nAn error in code that nothing awaits: the log is away \(stray\.ts:\d+:\d+\)\.\n$/)
  expect(stderr).toMatch(
    /An error in code that nothing awaits: the log is away \(stray\.ts:\d+:\d+\)\. The current step is finished and saved first\./,
  )
  expect(stepsOf('stray')).toEqual([1, 2])
  expect(isWhole('stray', 2)).toBe(true)
})

test('such a promise that is rejected with no Error, as by setTimeout(reject): the user is told that it is their code', async () => {
  runs.write('mute.ts', environment('if (calls === 12) void new Promise((_, reject) => setTimeout(reject))'))
  const { code, stderr } = await runs.run(['run_name=mute', 'max_steps=6', 'max_async_level=0', '--env.id', './mute.ts'])
  expect(code, stderr).toBe(2)
  expect(stderr).not.toContain('not in your input')
  const sentence =
    "An error in code that nothing awaits: a promise was rejected with undefined, which does not tell where. Await the promise, and reject with new Error('...')."
  expect(stderr).toContain(`\n${sentence} The current step is finished and saved first.\n`)
  expect(stderr.endsWith(`\n${sentence}\n`)).toBe(true)
})

const hasPython = spawnSync('python3', ['-c', 'import pty']).status === 0
test('a reward that ends the process: a sentence with its place, and an exit code of failure', async () => {
  runs.write('exits.ts', environment('if (calls === 4) process.exit(0)'))
  const { code, stderr } = await runs.run(['--env.id', './exits.ts', 'run_name=exits', 'max_steps=2'])
  expect(code, stderr).toBe(1)
  expect(stderr).toMatch(/\nThis was ended by process\.exit\(0\) at exits\.ts:\d+:\d+, before it was done\./)
})

test('sft whose run folder is deleted says so', async () => {
  runs.write('rows.jsonl', '{"prompt": "a", "completion": "b"}\n')
  const args =
    'run_name = "gone"\nlearning_rate = 1e-3\nbatch_size = 1\nmax_steps = 100000\nmax_seq_len = 64\nmicro_batch_tokens = 64\nlora_rank = 2'
  runs.write('sft.toml', `model = "tiny"\ndata = { path = "rows.jsonl" }\n[trainer.args]\n${args}\n`)
  const child = spawn(process.execPath, [`${root}/cli.js`, 'sft', '@', 'sft.toml'], { cwd: runs.dir })
  onTestFinished(() => void child.kill('SIGKILL'))
  let stderr = ''
  child.stderr.on('data', (part: Buffer) => (stderr += part.toString()))
  const code = new Promise<number | null>((resolve) => child.on('exit', resolve))
  const file = runs.path('outputs/gone/metrics.jsonl')
  while (child.exitCode === null && !(existsSync(file) && readFileSync(file, 'utf8').includes('"step":3,'))) await sleep(20)
  rmSync(runs.path('outputs/gone'), { recursive: true, maxRetries: 5 })
  expect(await code, stderr).toBe(1)
  expect(stderr).toMatch(/^The run folder .*gone was deleted or moved while the run wrote into it\.$/m)
})

test.skipIf(!hasPython)('a terminal that is closed: the step is finished and saved', async () => {
  const script = runs.write(
    'closed.py',
    `import fcntl, os, pty, struct, sys, termios
pattern, words = sys.argv[1].encode(), sys.argv[2:]
pid, master = pty.fork()
if pid == 0: os.execvp(words[0], words)
# Large enough for the live panel, which reads keys.
fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', 40, 120, 0, 0))
seen = b''
while pattern not in seen: seen += os.read(master, 65536)
os.close(master)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))`,
  )
  const train = [process.execPath, `${root}/train.js`, '@', 'run.toml', '--trainer.args.run_name', 'closed']
  const out = await saidBy('python3', [script, 'step    2/5000', ...train, '--trainer.args.max_steps', '5000'])
  expect(out).toBe('0\n')
  const last = stepsOf('closed').at(-1) as number
  expect(last).toBeLessThan(5000)
  expect(isWhole('closed', last)).toBe(true)
})

const canMount = spawnSync('unshare', ['-rm', 'sh', '-c', 'mount -t tmpfs -o size=1m t /mnt']).status === 0
test.skipIf(!canMount)(
  'a full disk (a file system of its own, in a user namespace): the run waits, and goes on where there is room',
  async () => {
    const script = runs.write(
      'full.sh',
      `mkdir disk && mount -t tmpfs -o size=3m t disk
node="$1"; shift
"$node" "$@" > full.out 2>&1 &
pid=$!
said() { until grep -q "$1" full.out || ! kill -0 $pid; do sleep 0.05; done; }
said 'step 2/5'
dd if=/dev/zero of=disk/ballast bs=1k count=9000 2> /dev/null
said 'no room for the'
cp -r disk/run then
truncate -s -40k disk/ballast
said 'no room for the checkpoint'
rm disk/ballast
wait $pid; echo "code $?"
cp -r disk/run after`,
    )
    const words = [`${root}/train.js`, '@', 'run.toml', ...['output_dir', 'disk', 'run_name', 'run', 'max_steps', '5', 'save_steps', '1', 'max_async_level', '0'].map((word, i) => (i % 2 ? word : `--trainer.args.${word}`))] // prettier-ignore
    const out = await saidBy('unshare', ['-rm', 'bash', script, process.execPath, ...words])
    const said = readFileSync(runs.path('full.out'), 'utf8')
    expect(out, said).toBe('code 0\n')
    expect(said).toMatch(
      /warning: the disk is full: no room for the (rollouts|metrics|checkpoint) of .+tries again \(next in 1 s\)/,
    )
    expect(said).toMatch(/warning: the disk is full: no room for the checkpoint of step/)
    expect(said).toMatch(/warning: there is room on the disk again for the checkpoint/)
    const lines = (path: string) => readFileSync(runs.path(path), 'utf8').split('\n')
    const rollouts = readdirSync(runs.path('after/rollouts')).map((name) => `after/rollouts/${name}`)
    expect(rollouts).toHaveLength(10)
    // While it was full too, every line was whole.
    for (const path of ['then/metrics.jsonl', 'after/metrics.jsonl', ...rollouts]) {
      expect(lines(path).at(-1)).toBe('')
      for (const line of lines(path).slice(0, -1)) JSON.parse(line)
    }
    for (const path of rollouts) expect(lines(path)).toHaveLength(9)
    const saved = (folder: string) => readdirSync(runs.path(folder, 'checkpoints')).filter((name) => /^step_\d+$/.test(name))
    for (const folder of ['then', 'after'])
      for (const name of saved(folder)) expect(brokenBecause(runs.path(folder, 'checkpoints', name))).toBeUndefined()
    expect(saved('then').length).toBeGreaterThan(0)
    expect(saved('after')).toContain('step_5')
  },
)

test.skipIf(!canMount)(
  'a resume on a disk that is full but for the lock: it waits in the same way before its first step',
  async () => {
    const script = runs.write(
      'refull.sh',
      `mkdir small && mount -t tmpfs -o size=3m t small
"$@" > begun.out 2>&1
rm -r small/run/checkpoints/step_2 small/run/plots
mount -o remount,size=$(($(df --output=used small | tail -1) + 8))k small
"$@" --resume > refull.out 2>&1 &
pid=$!
until grep -q 'no room for' refull.out || ! kill -0 $pid; do sleep 0.05; done
mount -o remount,size=3m small
wait $pid; echo "code $?"
cp -r small/run refull`,
    )
    const words = [`${root}/train.js`, '@', 'run.toml', ...['output_dir', 'small', 'run_name', 'run', 'max_steps', '2', 'save_steps', '1'].map((word, i) => (i % 2 ? word : `--trainer.args.${word}`))] // prettier-ignore
    const out = await saidBy('unshare', ['-rm', 'bash', script, process.execPath, ...words])
    const said = readFileSync(runs.path('refull.out'), 'utf8')
    expect(out, said).toBe('code 0\n')
    expect(said).toContain('warning: the disk is full: no room for what is kept of the steps up to 1. The run waits for room')
    expect(said).toContain('warning: there is room on the disk again for what is kept of the steps up to 1')
    const steps = readFileSync(runs.path('refull/metrics.jsonl'), 'utf8').trimEnd().split('\n').map((line) => (JSON.parse(line) as { step: number }).step) // prettier-ignore
    expect(steps).toEqual([1, 2])
    expect(brokenBecause(runs.path('refull/checkpoints/step_2'))).toBeUndefined()
  },
)

/** What a command prints, in the folder of the runs, once it has ended. */
async function saidBy(command: string, words: string[]): Promise<string> {
  const child = spawn(command, words, { cwd: runs.dir })
  let out = ''
  child.stdout.on('data', (piece: Buffer) => (out += piece.toString()))
  await new Promise((resolve) => child.on('close', resolve))
  return out
}

/** `node cli.js serve` as the server that a run samples from. */
async function serve(port: number): Promise<{ url: string; kill: () => void }> {
  const words = ['--model', 'tiny', '--served-model-name', 'base', '--port', String(port), '--adapter-root', '.', '--max-loras', '2', '--max-model-len', '32', '--logprobs-mode', 'processed_logprobs', '--generation-config', 'vllm'] // prettier-ignore
  const child = spawn(process.execPath, [`${root}/cli.js`, 'serve', ...words], { cwd: runs.dir })
  const kill = () => void child.kill('SIGKILL')
  onTestFinished(kill)
  return await new Promise((resolve, reject) => {
    let said = ''
    child.stderr.on('data', (piece: Buffer) => (said += piece.toString()))
    child.on('exit', () => reject(new Error(`the server ended: ${said}`)))
    child.stdout.on('data', (piece: Buffer) => {
      const url = /http:\/\/[\d.:]+/.exec(piece.toString())?.[0]
      if (url) resolve({ url, kill })
    })
  })
}

test('a server that goes away: the run waits for it, gives it its weights, and goes on; one that stays away ends it, saved', async () => {
  let server = await serve(0)
  const { port } = new URL(server.url)
  const sampled = (name: string, timeout: number) => [`run_name=${name}`, 'max_async_level=0', '--inference.backend', 'vllm', '--inference.base_url', server.url, '--inference.startup_timeout', String(timeout)] // prettier-ignore
  /** Calls back once when the output matches. */
  const when = (child: ReturnType<typeof runs.start>['child'], pattern: RegExp, act: () => void) => {
    let text = ''
    const look = (piece: Buffer) => {
      text += piece.toString()
      if (!pattern.test(text)) return
      child.stdout!.off('data', look)
      act()
    }
    child.stdout!.on('data', look)
  }
  const { child, outcome } = runs.start([...sampled('back', 300), 'max_steps=6'])
  when(child, /step 2\/6/, () => server.kill())
  let restarted: Promise<void> | undefined
  when(child, /does not answer; waiting for it/, () => {
    restarted = serve(Number(port)).then((next) => void (server = next))
  })
  good(await outcome)
  await restarted
  expect(stepsOf('back')).toEqual([1, 2, 3, 4, 5, 6])
  expect((await outcome).stdout).toContain('vLLM is back with the weights of version')
  for (const row of runs.rows('back', 'metrics.jsonl'))
    expect(row).toMatchObject({ 'has_error/mean': 0, 'progress/total_rollouts': 8 * Number(row.step) })

  const away = runs.start([...sampled('away', 2), 'max_steps=5000'])
  when(away.child, /step +2\/5000/, () => server.kill())
  const ended = await away.outcome
  expect(ended).toMatchObject({ code: 1 })
  expect(ended.stderr).toMatch(/has not answered for startup_timeout \(2 s\)/)
  const last = stepsOf('away').at(-1) as number
  expect(isWhole('away', last)).toBe(true)
})
