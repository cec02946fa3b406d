/** `train --dry-run` where vLLM samples: it says what it would start, or whom it would ask, and counts no cache of its own. */
import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect, onTestFinished, test } from 'vitest'
import { parseConfig } from '../../src/config/load.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-dry-'))
afterAll(() => rmSync(folder, { recursive: true }))

function dryRun(file: string, ...words: string[]): string {
  const all = ['train.js', '@', file, '--output_dir', folder, '--dry-run', ...words]
  const { status, stdout, stderr } = spawnSync(process.execPath, all, { cwd: root, encoding: 'utf8' })
  expect(status, stderr).toBe(0)
  expect(readdirSync(folder)).toEqual([])
  expect(parseConfig(stdout).config.inference.backend).toBe('vllm')
  expect(stdout).toContain('# Its weights and KV cache take memory of their own, which the table does not include')
  expect(stdout).toMatch(/# GPU memory for tiny\n(# .*\n)+# *total +\d/)
  expect(stdout).not.toMatch(/^# *KV cache/m)
  return stdout
}

test('a server that the run starts: its Python, model, port and flags', () => {
  const missing = ' (not installed yet: bash scripts/setup-vllm.sh creates .venv-vllm)'
  expect(dryRun('configs/vllm-lora.toml', '--inference.python', `${folder}/python`)).toContain(
    `# sampler: a vLLM server, started by ${folder}/python${missing} for models/tiny on a free port, with dtype, enforce_eager, gpu_memory_utilization, max_model_len\n`,
  )
  expect(
    dryRun('configs/vllm-lora.toml', '--inference.python', process.execPath, '--inference.args', '{ port = 8123 }'),
  ).toContain(`# sampler: a vLLM server, started by ${process.execPath} for models/tiny on port 8123`)
})

test('a Python where scripts/setup-vllm.sh makes it, although the run is started in another folder', () => {
  const words = ['--model', join(root, 'models/tiny'), '--inference.python', 'train.js', '--dry-run']
  const all = [join(root, 'train.js'), '@', join(root, 'configs/vllm-lora.toml'), ...words]
  const { stdout } = spawnSync(process.execPath, all, { cwd: folder, encoding: 'utf8' })
  expect(stdout).toContain(`# sampler: a vLLM server, started by ${join(root, 'train.js')} for `)
})

test('micro_batch_tokens = "auto": which number, why, and the table for it', () => {
  const stdout = dryRun('configs/vllm-lora.toml', '--micro_batch_tokens', 'auto', '--gpu_memory', '0.05')
  const { micro_batch_tokens: tokens } = parseConfig(stdout).config.trainer.args
  expect(stdout).toContain(`# micro_batch_tokens = ${tokens} ("auto"): needs about `)
  expect(stdout).toContain(' of 51.2 MiB (trainer.args.gpu_memory); twice as many need ')
  expect(stdout).toContain(`x ${tokens} tokens x 128\n`)
})

test.each([
  ['train.js', 'configs/tiny.toml'],
  ['cli.js sft', 'configs/tiny-sft.toml'],
])('a fork, of %s: the checkpoint that it starts from, or that there is none', (command, file) => {
  const other = mkdtempSync(join(tmpdir(), 'dawn-rl-other-'))
  onTestFinished(() => rmSync(other, { recursive: true }))
  mkdirSync(join(other, 'checkpoints/step_2'), { recursive: true })
  const of = (which: string) =>
    spawnSync(process.execPath, [...command.split(' '), '--fork', other + which, '@', file, '--dry-run'], {
      cwd: root,
      encoding: 'utf8',
    })
  expect(of('@2').stdout).toContain(`\n# fork of step 2 of ${other}\n`)
  expect(of('@best')).toMatchObject({ status: 2, stderr: expect.stringContaining('that run has no best checkpoint') as string })
})

test.each([
  ['train.js', 'configs/tiny.toml'],
  ['cli.js sft', 'configs/tiny-sft.toml'],
])('a resumed run, of %s: the checkpoint that it starts from, or that there is none', (command, file) => {
  const outputs = mkdtempSync(join(tmpdir(), 'dawn-rl-outputs-'))
  onTestFinished(() => rmSync(outputs, { recursive: true }))
  const run = join(outputs, 'a')
  mkdirSync(join(run, 'checkpoints/step_2'), { recursive: true })
  cpSync(join(root, file), join(run, 'config.toml'))
  const of = (...words: string[]) =>
    spawnSync(process.execPath, [...command.split(' '), '@', file, '--output_dir', outputs, ...words, '--dry-run'], {
      cwd: root,
      encoding: 'utf8',
    })
  expect(of('--run_name', 'a', '--resume', 'step', '2').stdout).toContain(`\n# resumes from ${run}/checkpoints/step_2\n`)
  const refused = (text: string) => ({ status: 2, stderr: expect.stringContaining(text) as string })
  expect(of('--run_name', 'a', '--resume', 'step', '7')).toMatchObject(refused('has no checkpoint of step 7. It has those of'))
  expect(of('--resume', join(outputs, 'b'))).toMatchObject(refused(`Nothing to resume: ${outputs}/b does not exist.`))
  rmSync(join(run, 'checkpoints/step_2'), { recursive: true })
  expect(of('--resume', run).stdout).toContain(`\n# resumes ${run}, which has no checkpoint yet: from the first step\n`)
})

test('of sft, which needs disk too', () => {
  const { stdout } = spawnSync(process.execPath, ['cli.js', 'sft', '@', 'configs/tiny-sft.toml', '--dry-run'], {
    cwd: root,
    encoding: 'utf8',
  })
  expect(stdout).toMatch(/\n# disk: 1\d\.\d MiB a checkpoint, 2\d\.\d MiB in all \(1 newest \+ one being written\);/)
})

test('a server that runs already', () => {
  const words = ['--inference.backend', 'vllm', '--inference.base_url', 'http://127.0.0.1:8000/v1']
  expect(dryRun('configs/tiny.toml', ...words)).toContain('# sampler: the vLLM server at http://127.0.0.1:8000\n')
})

test('the adapter is the one that the run would take, by DAWN_RL_ADAPTER too', () => {
  const words = ['train.js', '@', 'configs/tiny.toml', '--dry-run']
  const of = (DAWN_RL_ADAPTER: string) =>
    spawnSync(process.execPath, words, { cwd: root, encoding: 'utf8', env: { ...process.env, DAWN_RL_ADAPTER } })
  expect(of('').stdout).toMatch(/^# adapter: \S/m)
  const none = of('no such adapter')
  expect(none.status).toBe(2)
  expect(none.stderr).toMatch(/No WebGPU adapter has 'no such adapter' in its name/)
})

test('a LoRA adapter from which the run could not start is refused', () => {
  const sft = join(folder, 'sft.toml')
  writeFileSync(
    sft,
    `model.name = '${join(root, 'models/tiny')}'\ndata.env.id = 'reverse-text'\ntrainer.args.output_dir = '${folder}'\n`,
  )
  for (const command of [
    ['train.js', '@', 'configs/tiny.toml', '--output_dir', folder],
    ['cli.js', 'sft', '@', sft],
  ]) {
    const words = [...command, '--dry-run', '--model.adapter', join(folder, 'no-adapter')]
    const { status, stderr } = spawnSync(process.execPath, words, { cwd: root, encoding: 'utf8' })
    expect(status, stderr).toBe(2)
    expect(stderr).toMatch(/There is no folder \S+no-adapter/)
  }
})
