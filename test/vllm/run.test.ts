/** A whole run over vLLM, with the server killed in the middle of it: no step and no rollout is lost or made twice. */
import { execFileSync, spawn } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { root, scratch, vllmIsThere } from './helpers.ts'

vllmIsThere()
const folder = scratch()
afterAll(() => folder.remove())

const lines = (file: string): Record<string, unknown>[] =>
  existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n').filter(Boolean).map((line) => JSON.parse(line)) : [] // prettier-ignore

/** Processes that a process started, and those that they started. */
function descendants(pid: number): { pid: number; args: string }[] {
  const listed = execFileSync('ps', ['-eo', 'pid=,ppid=,args='], { encoding: 'utf8' }).split('\n')
  const all = listed.flatMap((line) => {
    const [, own, parent, args] = /^\s*(\d+)\s+(\d+)\s+(.*)$/.exec(line) ?? []
    return own ? [{ pid: Number(own), parent: Number(parent), args }] : []
  })
  const below = (of: number): { pid: number; args: string }[] =>
    all.filter((p) => p.parent === of).flatMap((p) => [p, ...below(p.pid)])
  return below(pid)
}

let tries = 0
it('goes through kill -9 of the server', async () => {
  // A second try on CI is a run of its own.
  const name = `killed-${++tries}`
  const steps = 8
  const changes = `
    [trainer.args]
    output_dir = ${JSON.stringify(folder.path)}
    run_name = "${name}"
    max_steps = ${steps}
    batch_size = 32
    eval_strategy = "no"
    log_completions = false
  `
  const overlay = join(folder.path, 'overlay.toml')
  writeFileSync(overlay, changes)
  const child = spawn(process.execPath, ['train.js', '@', 'configs/vllm-lora.toml', '@', overlay], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let said = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (said += String(data)))
  const code = new Promise<number | null>((resolve) => child.on('exit', resolve))
  const run = join(folder.path, name)
  const metrics = () => lines(join(run, 'metrics.jsonl'))
  let over = false
  void code.then(() => (over = true))
  const seenPids = new Set<number>()
  const watch = setInterval(() => descendants(child.pid!).forEach((p) => seenPids.add(p.pid)), 1000)
  while (metrics().length < 3 && !over) await new Promise((resolve) => setTimeout(resolve, 20))
  // The server and its workers, not the shell that keeps it: as an out-of-memory killer would.
  const server = descendants(child.pid!).filter((p) => /^\S*python\S* -m vllm|^VLLM::/.test(p.args))
  expect(server.length, said).toBeGreaterThan(0)
  for (const { pid } of server) process.kill(pid, 'SIGKILL')
  expect(await code, said).toBe(0)
  clearInterval(watch)

  expect(said).toMatch(/vLLM (was killed by SIGKILL|ended with exit code \d+); starting it again/)
  expect(said).toMatch(/vLLM is back with the weights of version \d/)
  const rows = metrics()
  expect(rows.map((row) => row.step)).toEqual(Array.from({ length: steps }, (_, i) => i + 1))
  expect(rows.at(-1)).toMatchObject({ 'inference/restarts': 1 })
  expect(rows.every((row) => row['has_error/mean'] === 0)).toBe(true)
  const shas = rows.map((row) => row['inference/adapter_sha'])
  expect(new Set(shas).size).toBe(steps)
  const seen = new Set<string>()
  for (let step = 1; step <= steps; step++) {
    const rollouts = lines(join(run, 'rollouts', `step_${step}.jsonl`)).filter((row) => row.split !== 'eval')
    expect(rollouts).toHaveLength(32)
    for (const rollout of rollouts) seen.add(`${String(rollout.group)} ${String(rollout.index)}`)
  }
  expect(seen.size, 'each rollout once').toBe(32 * steps)
  // Nothing of the server is left, and nothing of the weights on their way.
  const left = () => [...seenPids].filter((pid) => existsSync(`/proc/${pid}`))
  // The killed ones' helpers notice within a second or two.
  for (let n = 0; n < 100 && left().length > 0; n++) await new Promise((resolve) => setTimeout(resolve, 100))
  expect(left()).toEqual([])
  expect(readdirSync(run)).not.toContain('weights')
})
