/** Snapshot folders, and data sets of a hub. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { loadRows } from '../../src/environments/datasets.ts'
import { filesOfSplit, isHubId } from '../../src/environments/datasets-hub.ts'
import { openHub } from '../hub.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-hub-'))
afterAll(() => rmSync(folder, { recursive: true }))
const parquet = readFileSync(fileURLToPath(new URL('fixtures/tasks.parquet', import.meta.url)))
const line = (question: string) => Buffer.from(`${JSON.stringify({ question, answer: 1 })}\n`)

describe('files of a split', () => {
  const gsm8k = ['README.md', '.gitattributes', 'main/train-00000-of-00001.parquet', 'main/test-00000-of-00001.parquet', 'socratic/train-00000-of-00001.parquet'] // prettier-ignore
  const split = (files: string[], options = {}) => filesOfSplit(files, 'd', options)
  test('of a subset, in their order', () => {
    expect(split(gsm8k, { subset: 'main' })).toEqual(['main/train-00000-of-00001.parquet'])
    expect(split(gsm8k, { subset: 'main', split: 'test' })).toEqual(['main/test-00000-of-00001.parquet'])
    expect(split(['data/train-00001-of-00002.parquet', 'data/train-00000-of-00002.parquet', 'data/test-0.parquet'])).toEqual([
      'data/train-00000-of-00002.parquet',
      'data/train-00001-of-00002.parquet',
    ])
    expect(split(['train/a.jsonl', 'dev/a.jsonl'], { split: 'validation' })).toEqual(['dev/a.jsonl'])
    expect(split(['tasks.jsonl', 'dataset_infos.json'])).toEqual(['tasks.jsonl'])
    expect(split(['train.jsonl', 'train.parquet'])).toEqual(['train.parquet'])
    expect(split(['constrained.jsonl', 'train.json'])).toEqual(['train.json'])
    const parts = ['data/train_gen-00000-of-00001.parquet', 'data/train_sft-00000-of-00001.parquet']
    expect(split(parts, { split: 'train_sft' })).toEqual([parts[1]])
    const beside = ['test.jsonl', 'test_socratic.jsonl', 'train.jsonl', 'train_socratic.jsonl']
    expect(split(beside)).toEqual(['train.jsonl'])
    expect(split(beside, { split: 'test_socratic' })).toEqual(['test_socratic.jsonl'])
  })
  test.each<[string[], object, string]>([
    [gsm8k, {}, 'has several subsets. Name one of main, socratic as subset'],
    [gsm8k, { subset: 'mian' }, 'no subset "mian". It has main, socratic'],
    [gsm8k, { subset: 'main', split: 'validation' }, 'no split "validation". It has test, train'],
    [['tasks.jsonl'], { split: 'test' }, 'no split "test". It has only files that name no split: tasks.jsonl'],
    [['README.md'], {}, 'no data files (.jsonl'],
    [
      ['train/data-00000.arrow', 'state.json'],
      {},
      'There is train/data-00000.arrow. Convert it with to_parquet(), or push it to the hub.',
    ],
  ])('%j %j', (files, options, words) => {
    expect(() => split(files, options)).toThrow(words)
    expect(() => split(files, options)).toThrow(UserError)
  })
  test('what is an id', () => {
    expect(['openai/gsm8k', 'a/b.jsonl', './a/b', 'a', 'a/b/c', '../a', 'src/common'].map(isHubId)).toEqual([true, false, false, false, false, false, false]) // prettier-ignore
  })
})

describe('a snapshot folder', () => {
  const snapshot = join(folder, 'snapshot')
  const put = (path: string, data: Buffer) => {
    mkdirSync(dirname(join(snapshot, path)), { recursive: true })
    writeFileSync(join(snapshot, path), data)
  }
  put('README.md', Buffer.from('# d'))
  put('data/train-0.jsonl', line('a'))
  put('data/train-1.jsonl', line('b'))
  put('data/test-0.jsonl', line('c'))
  test('gives the rows of its split', async () => {
    expect((await loadRows(snapshot)).map((row) => row.prompt[0].content)).toEqual(['a', 'b'])
    expect((await loadRows({ path: snapshot, split: 'test' })).map((row) => row.prompt[0].content)).toEqual(['c'])
  })
  test('columns by other names; those left over go to info', async () => {
    const file = join(folder, 'math.jsonl')
    writeFileSync(file, `${JSON.stringify({ problem: 'p', solution: 's', level: 3 })}\n`)
    const rows = await loadRows({ path: file, columns: { question: 'problem', answer: 'solution' } })
    expect(rows).toEqual([{ exampleId: 0, prompt: [{ role: 'user', content: 'p' }], answer: 's', info: { level: 3 } }])
    // One column may have the name of another of ours, and the one that is named is asked where there is a prompt too.
    const both = join(folder, 'both.jsonl')
    writeFileSync(both, `${JSON.stringify({ prompt: 'P', question: 'Q', answer: 'A' })}\n`)
    const [swapped] = await loadRows({ path: both, columns: { question: 'answer', answer: 'question' } })
    expect(swapped).toEqual({ exampleId: 0, prompt: [{ role: 'user', content: 'A' }], answer: 'Q', info: {} })
    await expect(loadRows({ path: file, columns: { answer: 'result' } })).rejects.toThrow('no column "result" to use as answer (columns found: problem, solution, level)') // prettier-ignore
    await expect(loadRows({ path: file, split: 'test' })).rejects.toThrow('is one file, so split does not apply to it')
  })
})

describe('a hub id', () => {
  const sha = '0123456789abcdef0123456789abcdef01234567'
  const files = new Map([['README.md', Buffer.from('# tiny')], ['main/train.parquet', parquet], ['main/test.jsonl', line('t')],
    ['parts/train-00000-of-00002.jsonl', line('p')], ['parts/train-00001-of-00002.jsonl', line('q')], ['odd #1?/train 50%25.jsonl', line('o')]]) // prettier-ignore
  const hub = openHub('datasets', sha, files)
  test('fetches the split asked for, once, and then needs no network', async () => {
    hub.use(join(folder, 'a'))
    process.env.HF_TOKEN = 'hf_secret'
    const rows = await loadRows({ path: 'owner/tiny', split: 'test' })
    expect(rows.map((row) => row.prompt[0].content)).toEqual(['t'])
    expect(hub.asked.map(({ path }) => path).filter((path) => path.includes('resolve'))).not.toContainEqual(
      expect.stringContaining('train'),
    )
    expect(hub.asked.every(({ token }) => token === 'Bearer hf_secret')).toBe(true)
    hub.asked.length = 0
    process.env.HF_HUB_OFFLINE = '1'
    expect(await loadRows({ path: 'owner/tiny', split: 'test' })).toEqual(rows)
    expect(hub.asked).toEqual([])
    await expect(loadRows({ path: 'owner/tiny', subset: 'main' })).rejects.toThrow('HF_HUB_OFFLINE forbids downloading it')
    Object.assign(process.env, { HF_HUB_OFFLINE: '0', HF_DATASETS_OFFLINE: '1' })
    await expect(loadRows({ path: 'owner/tiny', subset: 'main' })).rejects.toThrow('HF_DATASETS_OFFLINE forbids downloading it')
    Object.assign(process.env, { HF_HUB_OFFLINE: '1', HF_DATASETS_OFFLINE: '0' })
    expect(await loadRows({ path: 'owner/tiny', subset: 'main' })).toEqual(
      await loadRows(fileURLToPath(new URL('fixtures/tasks.parquet', import.meta.url))),
    )
  })
  test('a list that a process was killed at is fetched anew', async () => {
    hub.use(join(folder, 'killed'))
    const rows = await loadRows({ path: 'owner/tiny', split: 'test' })
    const list = join(folder, 'killed', 'datasets--owner--tiny/.dawn-rl', `${sha}.json`)
    expect(JSON.parse(readFileSync(list, 'utf8'))).toEqual([...files.keys()])
    writeFileSync(list, '')
    expect(await loadRows({ path: 'owner/tiny', split: 'test' })).toEqual(rows)
    expect(JSON.parse(readFileSync(list, 'utf8'))).toEqual([...files.keys()])
  })
  test('of a commit whose download was cut off is not taken for whole', async () => {
    hub.use(join(folder, 'cut'))
    const parts = { path: 'owner/tiny', subset: 'parts', revision: sha }
    hub.send = (path, data) => (path.includes('00001') ? data.subarray(1) : data)
    await expect(loadRows(parts)).rejects.toThrow(/received \d+ bytes of parts\/train-00001-of-00002.jsonl instead of/)
    hub.send = (_, data) => data
    expect((await loadRows(parts)).map((row) => row.prompt[0].content)).toEqual(['p', 'q'])
  })
  test("of another tool's snapshot that has only some parts of the split is fetched", async () => {
    hub.use(join(folder, 'other-tool'))
    const repo = join(folder, 'other-tool', 'datasets--owner--tiny')
    for (const [path, data] of [
      ['refs/main', Buffer.from(sha)],
      [`snapshots/${sha}/parts/train-00000-of-00002.jsonl`, line('p')],
    ] as const) {
      // prettier-ignore
      mkdirSync(dirname(join(repo, path)), { recursive: true })
      writeFileSync(join(repo, path), data)
    }
    const parts = { path: 'owner/tiny', subset: 'parts' }
    expect((await loadRows(parts)).map((row) => row.prompt[0].content)).toEqual(['p', 'q'])
  })
  test('whose files have names that mean something else in an address', async () => {
    hub.use(join(folder, 'odd'))
    const rows = await loadRows({ path: 'owner/tiny', subset: 'odd #1?' })
    expect(rows.map((row) => row.prompt[0].content)).toEqual(['o'])
  })
  test('sends the token to the hub only, and one of a mirror too', async () => {
    hub.use(join(folder, 'token'))
    Object.assign(process.env, { HF_TOKEN: ' a-mirror-token\n' })
    hub.cdn = true
    await loadRows({ path: 'owner/tiny', split: 'test' })
    const [hubs, others] = [false, true].map((cdn) => hub.asked.filter(({ path }) => path.startsWith('/cdn/') === cdn))
    expect(new Set(hubs.map(({ token }) => token))).toEqual(new Set(['Bearer a-mirror-token']))
    expect(new Set(others.map(({ token }) => token))).toEqual(new Set([undefined]))
  })
  test('one that is not there', async () => {
    hub.use(join(folder, 'b'))
    await expect(loadRows('owner/other')).rejects.toThrow(/The dataset owner\/other could not be fetched from http:\S+: /)
    process.env.HF_ENDPOINT = 'http://127.0.0.1:9'
    await expect(loadRows('owner/tiny')).rejects.toThrow('To work without the hub, name a file or a folder')
  })
})
