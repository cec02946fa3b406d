/** The parts of bench/peers that need no peer: reading figures, running a child, the table, what counts as the same. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { GROUPS } from '../../bench/peers/cases.ts'
import { ChildError, resultsOf, runJob, type Job, type Result } from '../../bench/peers/job.ts'
import { agreement, Differences } from '../../bench/peers/same.ts'
import { median, rowOf, tableLines } from '../../bench/peers/table.ts'
import { Random } from '../../src/common/random.ts'
import { seed, seedWords } from '../seed.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-peers-test-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
const job = { work: 'check', model: 'models/tiny', tokens: 3 } as Job
const script = (code: string): string[] => [process.execPath, '-e', code, '--']

describe('figures', () => {
  it('are the marked lines, whatever is written around them', () => {
    const output = 'loading\nRESULT {"name":"a","peakBytes":1}\nnote: RESULT {}\nRESULT {"name":"b","value":2,"peakBytes":3}\n'
    expect(resultsOf(output)).toEqual([
      { name: 'a', peakBytes: 1 },
      { name: 'b', value: 2, peakBytes: 3 },
    ])
  })

  it('the median is the middle one of any order', () => {
    const random = new Random(seed)
    for (let count = 1; count < 8; count++) {
      const values = Array.from({ length: count }, () => random.next())
      const sorted = values.toSorted((a, b) => a - b)
      const [low, high] = [sorted[(count - 1) >> 1], sorted[count >> 1]]
      expect(median(values), seedWords).toBe((low + high) / 2)
    }
  })
})

describe('a child', () => {
  const echo = `const j = JSON.parse(require('fs').readFileSync(process.argv[1])); console.log('RESULT ' + JSON.stringify({ name: j.work, value: j.tokens, peakBytes: 1 }))`

  it('is given the job and gives its figures', async () => {
    expect(await runJob(script(echo), job, folder, 60_000)).toEqual([{ name: 'check', value: 3, peakBytes: 1 }])
    expect((JSON.parse(readFileSync(join(folder, 'job.json'), 'utf8')) as Job).model).toBe('models/tiny')
  })

  it.each([
    ['fails', `console.error('no such thing'); process.exit(3)`, /ended with 3: no such thing/],
    ['throws', `throw new TypeError('of a thing')`, /ended with 1: TypeError: of a thing$/],
    ['writes no figure', `console.log('done')`, /ended with 0: done/],
    ['is killed', `process.kill(process.pid, 'SIGKILL')`, /ended with SIGKILL/],
  ])('that %s is an error with its last words', async (_, code, message) => {
    const failing = runJob(script(code), job, folder, 60_000)
    await expect(failing).rejects.toThrow(ChildError)
    await expect(failing).rejects.toThrow(message)
  })

  it('that does not end is ended, and a program that is not there is an error', async () => {
    await expect(runJob(script('setInterval(() => {}, 1000)'), job, folder, 500)).rejects.toThrow(/not done after 0.5 s/)
    await expect(runJob([join(folder, 'nothing')], job, folder, 60_000)).rejects.toThrow(/ENOENT/)
  })
})

describe('the table', () => {
  const side = (values: number[], bytes: number) => ({ values, peakBytes: values.map(() => bytes), generation: [] })

  it('has more for faster, in tokens a second and in seconds', () => {
    const rate = rowOf('a', 'p', { unit: 'tokens/s', speed: 1, memory: 0.35 }, side([20, 30], 3e8), side([10, 15], 1e9))
    expect(rate).toMatchObject({ ours: 25, theirs: 12.5, ratio: 2, met: true, memoryMet: true })
    const time = rowOf('b', 'p', { unit: 's', speed: 1, memory: 0.35 }, side([4], 5e8), side([2], 1e9))
    expect(time).toMatchObject({ ratio: 0.5, met: false, memoryRatio: 0.5, memoryMet: false })
    const seen = rowOf('c', 'p', { unit: 's', speed: null, memory: null }, side([4], 5e8), side([2], 1e9))
    expect(seen).toMatchObject({ met: null, memoryMet: null })
    const lines = tableLines([rate, time, seen])
    expect(lines).toHaveLength(4)
    expect(lines[1]).toMatch(/^a +p +25.0 tokens\/s +12.5 tokens\/s +2.00 x +1 x +met +0.30 GB +1.00 GB +0.30 x +0.35 x +met$/)
    expect(lines[2]).toMatch(/not met.*not met$/)
    expect(lines[3]).not.toMatch(/met/)
  })
})

describe('the check', () => {
  const side = (over: Partial<Result> = {}): Result => ({
    name: 'check',
    peakBytes: 1,
    promptIds: [[1, 2]],
    answers: [[3, 4]],
    logprobs: [-1, -2],
    ...over,
  })

  it('takes what is the same to 1e-3 and refuses the rest', () => {
    const differences = new Differences()
    differences.compare(side(), side({ logprobs: [-1.0005, -2] }))
    expect(differences.worst).toBeCloseTo(5e-4)
    const wrong: [Partial<Result>, RegExp][] = [
      [{ promptIds: [[1, 3]] }, /other ids/],
      [{ answers: [[3, 5]] }, /prompt 0/],
      [{ logprobs: [-1, -2.01] }, /differ by 0.0/],
      [{ logprobs: [-1, NaN] }, /differ by NaN/],
      [{ logprobs: [-1] }, /2 and 1/],
    ]
    for (const [over, message] of wrong) expect(() => differences.compare(side(), side(over))).toThrow(message)
  })

  it('says how many continuations are equal', () => {
    const ours = [side({ name: 'generate 2', answers: [[1], [2]] })]
    expect(agreement(ours, [side({ name: 'generate 2', answers: [[1], [3]] })])).toBe(
      'generate 2: 1 of 2 greedy continuations equal',
    )
    expect(agreement(ours, [side({ name: 'another' })])).toBe('')
  })
})

it('every case has a target for each of its peers', () => {
  for (const { peers, targets } of GROUPS)
    for (const target of Object.values(targets)) expect(Object.keys(target).toSorted()).toEqual(peers.toSorted())
})
