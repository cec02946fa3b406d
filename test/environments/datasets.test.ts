import { execSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { loadRows, type RowInput, splitRows } from '../../src/environments/datasets.ts'
import { readTable } from '../../src/environments/tables.ts'
import { isWindows } from '../windows.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-data-'))
afterAll(() => rmSync(folder, { recursive: true }))
const file = (name: string, content: string | Uint8Array) => {
  const path = join(folder, name)
  writeFileSync(path, content)
  return path
}
const parquet = fileURLToPath(new URL('fixtures/tasks.parquet', import.meta.url))

/** The message of the UserError that a promise rejects with, without the folder. */
async function refusal(promise: Promise<unknown>): Promise<string> {
  const error = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(UserError)
  return (error as UserError).message.replaceAll(folder + sep, './').replaceAll(folder, '.')
}

describe('rows', () => {
  test('question or prompt, answer, info as object or JSON, other columns into info', async () => {
    const rows = await loadRows(
      [
        { question: 'a?', answer: 4, info: '{"x": 1}', level: 'easy' },
        {
          prompt: [
            { role: 'system', content: 's' },
            { role: 'user', content: 'b?' },
          ],
          example_id: 9,
        },
        { prompt: 'c?', info: { x: 2 } },
      ],
      { systemPrompt: 'be brief' },
    )
    expect(rows).toEqual([
      {
        exampleId: 0,
        prompt: [
          { role: 'system', content: 'be brief' },
          { role: 'user', content: 'a?' },
        ],
        answer: '4',
        info: { level: 'easy', x: 1 },
      },
      {
        exampleId: 9,
        prompt: [
          { role: 'system', content: 's' },
          { role: 'user', content: 'b?' },
        ],
        answer: '',
        info: {},
      },
      {
        exampleId: 2,
        prompt: [
          { role: 'system', content: 'be brief' },
          { role: 'user', content: 'c?' },
        ],
        answer: '',
        info: { x: 2 },
      },
    ])
  })
  test("messages in OpenAI's form: null for what a message has not, calls with their arguments as text or as an object", async () => {
    const none = { name: null, tool_calls: null, tool_call_id: null }
    const calls = [
      { id: 'a', type: 'function', function: { name: 'f', arguments: '{"x": 1}' } },
      { function: { name: 'f', arguments: { x: 1 } } },
    ]
    const prompt = [
      { role: 'user', content: 'q', ...none },
      { ...none, role: 'assistant', content: null, tool_calls: calls },
      { ...none, role: 'tool', content: '2', tool_call_id: 'a', name: 'f' },
    ]
    expect((await loadRows([{ prompt: prompt as never }]))[0].prompt).toEqual([
      { role: 'user', content: 'q' },
      {
        role: 'assistant',
        content: '',
        tool_calls: [calls[0], { id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"x":1}' } }],
      },
      { role: 'tool', content: '2', tool_call_id: 'a', name: 'f' },
    ])
    // Calls alone are no empty prompt.
    expect((await loadRows([{ prompt: [prompt[1]] as never }]))[0].prompt).toMatchObject([{ content: '' }])
  })
  test('from a generator function of the seed, sync or async', async () => {
    const make = function* (seed: number) {
      for (let i = 0; i < 3; i++) yield { question: `${seed}.${i}` }
    }
    expect((await loadRows(make, { seed: 5 })).map((row) => row.prompt[0].content)).toEqual(['5.0', '5.1', '5.2'])
    const slow = async function* (seed: number) {
      yield await Promise.resolve({ question: `${seed}` })
    }
    expect((await loadRows(slow, { seed: 6 }))[0].prompt[0].content).toBe('6')
  })
  test.each<[string, RowInput, string]>([
    [
      'no prompt',
      { text: 'hi', label: 1 },
      'dataset row 0 has neither a prompt nor a question (columns found: text, label). Rename the column that holds the task, or, if the rows come from a file, name it under columns of the dataset.',
    ],
    ['no columns', {}, '(columns found: none)'],
    ['question that is null', { question: null as never, answer: 1 }, 'dataset row 0: its question is empty.'],
    ['empty prompt', { prompt: ' ' }, 'dataset row 0: its prompt is empty.'],
    ['messages that say nothing', { prompt: [{ role: 'user', content: ' ' }] }, 'dataset row 0: its prompt is empty.'],
    ['prompt of a wrong type', { prompt: 4 as never }, 'its prompt must be text or a list of messages, found 4.'],
    ['messages in question', { question: [] as never }, 'its question must be text, found [].'],
    ['bad message', { prompt: [{ role: 'bot', content: 'x' } as never] }, 'message 0 of its prompt must be {role:'],
    ['message of null', { prompt: [null as never] }, 'message 0 of its prompt must be {role:'],
    ['object answer', { prompt: 'x', answer: {} as never }, 'its answer must be text or a number, found {}.'],
    [
      'an answer that is no number',
      { prompt: 'x', answer: NaN },
      'dataset row 0: its answer must be text or a number, found NaN.',
    ],
    [
      'a BigInt as answer',
      { prompt: 'x', answer: 10n as never },
      'dataset row 0: its answer must be text or a number, found 10n.',
    ],
    ['a BigInt as example_id', { prompt: 'x', example_id: 1n as never }, 'dataset row 0: example_id is 1n.'],
    [
      'an answer without text or calls',
      { prompt: [{ role: 'assistant', content: null } as never] },
      'message 0 of its prompt must be {role:',
    ],
    [
      'broken calls',
      { prompt: [{ role: 'assistant', content: null, tool_calls: [{ name: 'f' }] } as never] },
      'message 0 of its prompt must have tool_calls as a list of {function: {name, arguments}}, found [{"name":"f"}].',
    ],
    ['broken info', { prompt: 'x', info: '{' }, 'its info is text but not JSON'],
    ['info of a wrong type', { prompt: 'x', info: '[1]' }, 'its info must be an object, found [1].'],
    ['info that JSON has no word for', { prompt: 'x', info: { n: 10n } }, 'dataset row 0: its info cannot be written as JSON'],
    ['bad example_id', { prompt: 'x', example_id: -1 }, 'example_id is -1.'],
  ])('refused: %s', async (_, row, message) => {
    expect(await refusal(loadRows([row]))).toContain(message)
  })
  test('two rows of one example_id are refused: answers are gathered by it', async () => {
    const rows = [{ prompt: 'a', example_id: 1 }, { prompt: 'b' }]
    expect(await refusal(loadRows(rows))).toBe(
      'dataset row 1: example_id 1 is used by dataset row 0 already. Give each row an id of its own, or leave the column out to number the rows.',
    )
  })
  test('a generator without end', async () => {
    const endless = function* () {
      for (;;) yield { question: 'q' }
    }
    await expect(loadRows(endless)).rejects.toThrow('dataset yields more than 2000000 rows. Is it an endless generator?')
  })
  test('what is neither rows nor a file, as it comes from a file without a type check', async () => {
    expect(await refusal(loadRows((() => Promise.resolve([{ prompt: 'a' }])) as never))).toBe(
      "dataset must be rows in an array or from a generator, or the name of a file, found a promise; write 'await' in front of what makes the rows.",
    )
    expect(await refusal(loadRows({ prompt: 'a' } as never))).toContain('the name of a file, found {"prompt":"a"}.')
    expect(await refusal(loadRows(undefined as never))).toContain('the name of a file, found undefined.')
    expect(await refusal(loadRows(['say hi'] as never))).toBe(
      'dataset row 0 must be an object such as { prompt, answer }, found "say hi".',
    )
  })
  test('no rows at all', async () => {
    expect(await refusal(loadRows([], { name: 'evalDataset of environment x' }))).toBe(
      'evalDataset of environment x has no rows.',
    )
  })
})

describe('files', () => {
  test('JSON lines: blank lines, CRLF, no last newline, U+2028 inside a string', async () => {
    const path = file('a.jsonl', '{"question": "a\u2028b"}\r\n\n  \n{"question": "c", "answer": "ü"}')
    const rows = await loadRows(path)
    expect(rows.map((row) => [row.prompt[0].content, row.answer])).toEqual([
      ['a\u2028b', ''],
      ['c', 'ü'],
    ])
    expect((await readTable(path)).map((row) => row.where)).toEqual([`${path}:1`, `${path}:4`])
  })
  test('JSON lines longer than a chunk of the reader, and characters across its border', async () => {
    const texts = ['ü'.repeat(300_000), `x${'ü'.repeat(300_000)}`, 'end']
    const path = file('long.jsonl', texts.map((question) => JSON.stringify({ question })).join('\n'))
    expect((await loadRows(path)).map((row) => row.prompt[0].content)).toEqual(texts)
  })
  test('JSON', async () => {
    expect(await loadRows(file('a.json', '[{"prompt": "a"}, {"prompt": "b"}]'))).toHaveLength(2)
    // With the byte order mark of Windows, in both forms.
    expect(await loadRows(file('b.json', '\uFEFF[{"prompt": "a"}]'))).toHaveLength(1)
    expect(await loadRows(file('b.jsonl', '\uFEFF{"prompt": "a"}'))).toHaveLength(1)
  })
  test('whole numbers beyond 2^53 of JSON are text, as those of parquet: as numbers they would lie', async () => {
    const line =
      '{"question": "a", "answer": 99999999980000000001, "n": [-9007199254740993, 9007199254740991, 1e30, 0.1234567890123456]}'
    const rows = [...(await loadRows(file('big.jsonl', line))), ...(await loadRows(file('big.json', `[${line}]`)))]
    for (const { answer, info } of rows) {
      expect(answer).toBe('99999999980000000001')
      expect(info).toEqual({ n: ['-9007199254740993', 9007199254740991, 1e30, 0.1234567890123456] })
    }
    const [{ info }] = await loadRows([{ question: 'a', info: '{"seed": 1152921504606846977}' }])
    expect(info).toEqual({ seed: '1152921504606846977' })
  })
  test('parquet: decimals as they stand, and as text if a number would be another', async () => {
    const rows = await loadRows(fileURLToPath(new URL('fixtures/decimals.parquet', import.meta.url)))
    expect(rows.map(({ answer, info }) => [answer, info.whole, info.long])).toEqual([
      ['0.7', '12345678901234567890', '1234567890123456.789'],
      ['-5.7', -5, -0.1],
      ['', null, null],
    ])
    // Inside lists, structs and maps; stored as bytes of any length; beside bytes that are text.
    const nested = await loadRows(fileURLToPath(new URL('fixtures/nested.parquet', import.meta.url)))
    expect(nested.map(({ answer, info }) => [answer, info])).toEqual([
      ['0.7', { text: 'é', nested: { list: [0.7, null], map: { key_value: -5.7 } }, far: null }],
      ['-12.8', { text: null, nested: { list: null, map: null }, far: null }],
      ['300.1', { text: 'b', nested: null, far: null }],
    ])
  })
  test('parquet: a date that Date cannot hold is an error with its place', async () => {
    const path = fileURLToPath(new URL('fixtures/far-date.parquet', import.meta.url))
    await expect(loadRows(path)).rejects.toThrow(
      `${path} row 1: far is a date beyond the year 275760. Mend it, or leave that column out of the file.`,
    )
  })
  test('parquet: structs, int64 as numbers (as text beyond 2^53), dates, four compressions', async () => {
    const rows = await loadRows(parquet)
    expect(rows.map((row) => [row.exampleId, row.answer, row.info.level])).toEqual([
      [10, '1', 1],
      [11, '2', 2],
      [12, '3', 3],
    ])
    expect(rows[1].prompt).toEqual([{ role: 'user', content: 'Question 1?' }])
    expect(rows.map((row) => row.info.big)).toEqual(['4611686018427387905', 5, null])
    expect(rows[0].info.when).toBe('2026-01-02T00:00:00.000Z')
  })
  test.each([
    ['broken.jsonl', '{"question": "a"}\n{"question": ', './broken.jsonl:2: not valid JSON ('],
    ['list.jsonl', '[1]\n', './list.jsonl:1: expected an object like'],
    [
      'noprompt.jsonl',
      '{"question": "a"}\n{"q": "b", "a": 1}\n',
      './noprompt.jsonl:2 has neither a prompt nor a question (columns found: q, a).',
    ],
    ['latin1.jsonl', Buffer.from('{"question": "\xfc"}', 'latin1'), './latin1.jsonl:1 is not UTF-8 text.'],
    ['latin1.json', Buffer.from('[{"question": "\xfc"}]', 'latin1'), './latin1.json is not UTF-8 text.'],
    ['empty.jsonl', '\n', './empty.jsonl has no rows.'],
    ['object.json', '{"a": 1}', './object.json: expected an array of objects'],
    ['row.json', '[{"prompt": "x"}, 3]', './row.json row 1: expected an object like'],
    ['broken.json', '[', './broken.json: not valid JSON ('],
    ['cut.parquet', 'PAR1 and then nothing', './cut.parquet: cannot be read as a parquet file ('],
    [
      'rows.csv',
      'a,b',
      `dataset ./rows.csv: cannot read ".csv". Convert it to JSON lines with ${isWindows ? 'python' : 'python3'} -c "`,
    ],
    ['rows.jsonl.gz', 'x', 'dataset ./rows.jsonl.gz: cannot read ".gz". Unpack it first.'],
    ['rows.txt', 'x', 'dataset ./rows.txt: cannot read ".txt". Use one of .jsonl, .ndjson, .json, .parquet.'],
  ])('refused: %s', async (name, content, message) => {
    expect(await refusal(loadRows(file(name, content)))).toContain(message)
  })
  test('JSON lines in a file that is named .json', async () => {
    const path = file('lines.json', '{"question": "a"}\n{"question": "b"}\n')
    expect((await loadRows(path)).map((row) => row.prompt[0].content)).toEqual(['a', 'b'])
    expect(await refusal(loadRows(file('cut.json', '{"question": "a"}\n{"quest')))).toContain('./cut.json:2: not valid JSON (')
  })
  test.skipIf(isWindows && spawnSync('python', ['--version']).status !== 0).each(['rows.csv', 'rows.tsv', "o'brien $HOME 1.csv"])(
    'the command that a refused %s comes with makes a file that is read',
    async (name) => {
      const separator = name.endsWith('.csv') ? ',' : '\t'
      const text = [['question', 'answer'], ['"a\nb"', '1'], ['ü', '2']].map((row) => row.join(separator)).join('\r\n') // prettier-ignore
      const path = join(mkdtempSync(join(folder, 'tables-')), name)
      writeFileSync(path, `\ufeff${text}`)
      const made = path.replace(/\w+$/u, 'jsonl')
      for (const source of [path, dirname(path)]) {
        const command = / (python3? .*) and name the new file\.$/u.exec(await refusal(loadRows(source)))![1]
        expect(command).not.toMatch(/ > /) // PowerShell 5 writes UTF-16 there
        execSync(command, { cwd: folder })
        const rows = await loadRows(made)
        expect(rows.map((row) => [row.prompt[0].content, row.answer])).toEqual([['a\nb', '1'], ['ü', '2']]) // prettier-ignore
        rmSync(made)
      }
    },
  )
  test('refused: a JSON file of more than Node reads at once', async () => {
    const path = file('large.json', '[')
    truncateSync(path, 3 * 2 ** 30) // takes no room on the disk
    expect(await refusal(loadRows(path))).toBe(
      './large.json is too large to be read at once. Write one object per line, and name the file .jsonl.',
    )
    rmSync(path)
  })
  test('refused: missing file, an empty folder, a line over the cap', async () => {
    expect(await refusal(loadRows(join(folder, 'none.jsonl')))).toBe(
      'dataset ./none.jsonl: there is no such file. Check the path.',
    )
    expect(await refusal(loadRows(mkdtempSync(join(folder, 'empty-'))))).toContain(
      'has no data files (.jsonl, .ndjson, .json, .parquet)',
    )
    expect(await refusal(readTable(folder))).toContain('is a folder')
    const path = file('cap.jsonl', `{"question": "a"}\n{"question": "${'b'.repeat(1000)}"}\n`)
    expect(await refusal(readTable(path, { maxLineBytes: 100 }))).toContain('./cap.jsonl:2 is longer than 100 bytes.')
    expect(await readTable(path, { maxLineBytes: 2000 })).toHaveLength(2)
  })
})

describe('splitting', async () => {
  const rows = await loadRows(Array.from({ length: 100 }, (_, i) => ({ question: `q${i % 50}`, answer: i })))
  const prompts = (part: readonly { prompt: { content: string }[] }[]) => new Set(part.map((row) => row.prompt[0].content))
  test('by prompt: no held-out prompt is trained on, and nothing is lost', () => {
    const { train, held } = splitRows(rows, { seed: 1, evalSize: 0.2 })
    expect([train.length, held.length]).toEqual([80, 20])
    expect(prompts(train).intersection(prompts(held)).size).toBe(0)
    expect(train.map((row) => row.exampleId)).toEqual(train.map((row) => row.exampleId).toSorted((a, b) => a - b))
  })
  test('the same seed gives the same split, another seed another', () => {
    const ids = (seed: number) => splitRows(rows, { seed, evalSize: 5 }).held.map((row) => row.exampleId)
    expect(ids(1)).toEqual(ids(1))
    expect(ids(1)).toHaveLength(10)
    expect(ids(1)).not.toEqual(ids(2))
  })
  test('each prompt is read once, as there may be a million', () => {
    let read = 0
    const counted = rows.map(({ prompt, ...row }) => ({
      ...row,
      get prompt() {
        read++
        return prompt
      },
    }))
    splitRows(counted, { seed: 1, evalSize: 0.2 })
    expect(read).toBe(rows.length)
  })
  test('none, or too many', () => {
    expect(splitRows(rows, { seed: 1, evalSize: 0 }).held).toEqual([])
    expect(() => splitRows(rows, { seed: 1, evalSize: 50, name: 'x.jsonl' })).toThrow(
      'x.jsonl: cannot hold out 50 of 50 different prompts; some must remain to train on. Set evalSize lower, or to 0 to hold out none.',
    )
    expect(() => splitRows(rows, { seed: 1, evalSize: -1 })).toThrow(UserError)
  })
})
