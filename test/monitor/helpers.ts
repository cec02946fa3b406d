import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Writable } from 'node:stream'
import { onTestFinished } from 'vitest'
import type { ScoredRollout } from '../../src/monitor/aggregate.ts'
import type { Rollout } from '../../src/common/types.ts'

/** A folder that is gone after the test. */
export function temporaryFolder(): string {
  const path = mkdtempSync(join(tmpdir(), 'dawn-rl-monitor-'))
  onTestFinished(() => rmSync(path, { recursive: true, force: true }))
  return path
}

/** A rollout of three sampled tokens; override what the test is about. */
export function rollout(over: Partial<Rollout> = {}): Rollout {
  return {
    exampleId: 0,
    env: 'short-answers',
    group: 'g0',
    index: 0,
    prompt: [{ role: 'user', content: 'What is the capital of France?' }],
    completion: [{ role: 'assistant', content: 'Paris.' }],
    answer: 'Paris',
    info: {},
    reward: 1,
    metrics: {},
    promptIds: [1, 2, 3, 4],
    completion_tokens: { ids: [5, 6, 7], logprobs: [-0.1, -0.2, -0.3], versions: [0, 0, 0] },
    isTruncated: false,
    stopCondition: 'eos',
    error: null,
    seed: 1,
    timing: { generation_ms: 10, scoring_ms: 1, total_ms: 11 },
    ...over,
  }
}

/** One rollout a reward; group g of `groups[g]`, index in order. */
export function groupsOf(groups: (number | null)[][], over: Partial<Rollout> = {}): Rollout[] {
  return groups.flatMap((rewards, g) =>
    rewards.map((reward, index) =>
      rollout({ group: `g${g}`, exampleId: g, index, reward, error: reward === null ? 'Error: no' : null, ...over }),
    ),
  )
}

export function scored(rollouts: Rollout[], advantage: ScoredRollout['advantage'] = null): ScoredRollout[] {
  return rollouts.map((r) => ({ rollout: r, advantage }))
}

/** A stream that remembers what was written to it. */
export class Capture extends Writable {
  text = ''
  isTTY: boolean
  columns = 80
  rows = 24
  constructor(isTTY = false) {
    super({ decodeStrings: false })
    this.isTTY = isTTY
  }
  override _write(chunk: string | Buffer, _encoding: string, done: () => void): void {
    this.text += chunk.toString()
    done()
  }
}

/** A page without its base64, in which any three letters may stand, "NaN" among them. */
export const withoutData = (html: string): string => html.replaceAll(/base64,[^"]*/g, '')
