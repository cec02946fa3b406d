/** Run folders as a run leaves them, made by the run's own writers, and a server over them. */
import { appendFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { request } from 'node:http'
import { dirname, join } from 'node:path'
import { onTestFinished } from 'vitest'
import type { Metrics } from '../../../src/common/types.ts'
import type { ScoredRollout } from '../../../src/monitor/aggregate.ts'
import { RolloutWriter, type Split } from '../../../src/monitor/rollout-writer.ts'
import { startView, type RunningView, type ViewOptions } from '../../../src/monitor/view/server.ts'
import { temporaryFolder } from '../helpers.ts'

/** A folder of runs. */
export class Outputs {
  readonly path = temporaryFolder()

  file(...names: string[]): string {
    const path = join(this.path, ...names)
    mkdirSync(dirname(path), { recursive: true })
    return path
  }

  write(name: string, text: string): void {
    writeFileSync(this.file(name), text)
  }

  read(name: string): string {
    return readFileSync(this.file(name), 'utf8')
  }

  append(name: string, text: string): void {
    appendFileSync(this.file(name), text)
  }

  /** A run with a config and a row of metrics a step. */
  run(
    id: string,
    rows: Metrics[] = [],
    config = `[model]\nname = "none"\n[[env]]\nid = "sums"\n[trainer.args]\nmax_steps = ${rows.length}\n`,
  ) {
    this.write(join(id, 'config.toml'), config)
    this.write(
      join(id, 'metrics.jsonl'),
      rows.map((row, i) => `${JSON.stringify({ step: i + 1, time: 1000 + i, ...row })}\n`).join(''),
    )
    return id
  }

  rollouts(id: string, step: number, rollouts: readonly ScoredRollout[], split: Split = 'train'): void {
    const at = (name: string) => this.file(id, 'rollouts', name)
    const folder = { rolloutsPath: (n: number) => at(`step_${n}.jsonl`), tokensPath: (n: number) => at(`step_${n}.tokens.jsonl`) }
    new RolloutWriter(folder).write(step, split, rollouts)
  }

  /** A server over the folder, gone after the test. */
  async serve(options: Partial<ViewOptions> = {}): Promise<Viewer> {
    const view = await startView({ outputs: this.path, everyMs: 30, ...options })
    onTestFinished(() => view.close())
    return new Viewer(view)
  }
}

export interface Answer {
  status: number
  headers: Record<string, string | string[] | undefined>
  text: string
}

export class Viewer {
  readonly view: RunningView
  constructor(view: RunningView) {
    this.view = view
  }

  /** The path goes out as it is written. */
  raw(path: string, headers: Record<string, string> = {}, method = 'GET'): Promise<Answer> {
    const { hostname, port } = new URL(this.view.origin)
    return new Promise((resolve, reject) => {
      const sent = request({ hostname, port, path, method, headers, agent: false }, (response) => {
        const parts: Buffer[] = []
        response.on('data', (part: Buffer) => parts.push(part))
        response.on('end', () =>
          resolve({ status: response.statusCode!, headers: response.headers, text: Buffer.concat(parts).toString('utf8') }),
        )
      })
      sent.on('error', reject)
      sent.end()
    })
  }

  /** With the key. */
  async ask(path: string, headers: Record<string, string> = {}): Promise<Answer> {
    return await this.raw(path, { authorization: `Bearer ${this.view.key}`, ...headers })
  }

  async json<T>(path: string): Promise<T> {
    const { status, text } = await this.ask(path)
    if (status !== 200) throw new Error(`${path}: ${status} ${text}`)
    return JSON.parse(text) as T
  }

  /** The words of a refusal. */
  async error(path: string): Promise<{ status: number; message: string }> {
    const { status, text } = await this.ask(path)
    return { status, message: (JSON.parse(text) as { error: { message: string } }).error.message }
  }
}
