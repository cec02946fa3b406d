/** Tool calls in what models write: whole texts, and the same texts cut anywhere. */
import { describe, expect, test } from 'vitest'
import { AnswerJoiner } from '../../src/inference/parsers/tools/stream.ts'
import { planTools } from '../../src/inference/parsers/tools/choice.ts'
import { namedCallParser, TOOL_PARSERS, toolParser, toolParserFor } from '../../src/inference/parsers/tools/index.ts'
import type { AnswerDelta, ToolParser } from '../../src/inference/parsers/types.ts'
import { userErrorOf } from '../model/helpers.ts'
import fc from '../fast-check.ts'

/** Content, and the calls as [name, arguments]. */
function read(parser: ToolParser, text: string): [string | null, ...[string, string][]] {
  const { content, tool_calls } = parser.parse(text)
  return [content, ...tool_calls.map((call): [string, string] => [call.function.name, call.function.arguments])]
}

const hermes = toolParser('hermes')
const llama = toolParser('llama3_json', { names: ['f', 'g'] })
const json = toolParser('json', { names: ['f', 'g'] })

describe('hermes', () => {
  const cases: [string, ...ReturnType<typeof read>][] = [
    ['Hello.\n', 'Hello.\n'],
    ['', null],
    ['<tool_call>\n{"name": "f", "arguments": {"a": [1, "}"]}}\n</tool_call>', null, ['f', '{"a": [1, "}"]}']],
    [
      'Both.\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>\n{"arguments": {"x":"\\"</tool_call>"}, "name": "g"}</tool_call>\n',
      'Both.',
      ['f', '{}'],
      ['g', '{"x":"\\"</tool_call>"}'],
    ],
    ['A <tool_call>{"name":"f","arguments":{}}</tool_call>\nB <b>', 'A\nB <b>', ['f', '{}']],
    ['<tool_call>{"name": "now"}</tool_call>', null, ['now', '{}']],
    // Broken before the arguments: text.
    ['<tool_call>{"name": f, "arguments": {}}</tool_call>', '<tool_call>{"name": f, "arguments": {}}</tool_call>'],
    ['<tool_call>{"name": "f", "arguments": "x"}</tool_call>', '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'],
    ['<tool_call>{"name": "f"', '<tool_call>{"name": "f"'],
    [' \n<tool_', ' \n<tool_'],
    ['<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>', '<tool_call>', ['f', '{}']],
    // Broken or cut in the arguments: a call, as it was written.
    ['<tool_call>{"name": "f", "arguments": {"a": 1, "b', null, ['f', '{"a": 1, "b']],
    ['<tool_call>{"name": "f", "arguments": {"a": nope}}</tool_call>', null, ['f', '{"a": nope}']],
    // A brace is missing.
    ['<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> End', ' End', ['f', '{"a": 1}']],
    ['<tool_call>{"name": "f", "arguments": {}}', null, ['f', '{}']],
  ]
  test.each(cases)('%j', (text, ...expected) => {
    expect(read(hermes, text)).toEqual(expected)
  })
})

describe('llama3_json', () => {
  const cases: [string, ...ReturnType<typeof read>][] = [
    ['{"name": "f", "parameters": {"a": 1}}', null, ['f', '{"a": 1}']],
    [
      '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "arguments": {"b": "ü"}}',
      null,
      ['f', '{}'],
      ['g', '{"b": "ü"}'],
    ],
    ['I look.\n{"type": "function", "name": "f", "parameters": {}}', 'I look.', ['f', '{}']],
    ['Sets are {"name": "f", "parameters": {}}', 'Sets are {"name": "f", "parameters": {}}'],
    ['{"name": "Bob", "parameters": {}}', '{"name": "Bob", "parameters": {}}'],
    ['{"name": "f"}', '{"name": "f"}'],
    ['{"items": [{"name": "f", "parameters": {}}]}', '{"items": [{"name": "f", "parameters": {}}]}'],
    ['<|python_tag|>print(1)', '<|python_tag|>print(1)'],
    ['{"name": "f", "parameters": {}}; and so on', '; and so on', ['f', '{}']],
    ['[{"name": "f", "parameters": {}}]', '[{"name": "f", "parameters": {}}]'],
  ]
  test.each(cases)('%j', (text, ...expected) => {
    expect(read(llama, text)).toEqual(expected)
  })
})

describe('json', () => {
  const cases: [string, ...ReturnType<typeof read>][] = [
    ['{"name": "f", "arguments": {"a": {}}}', null, ['f', '{"a": {}}']],
    ['[{"name": "f", "parameters": {}},\n {"name": "g", "parameters": {"x": 2}}]', null, ['f', '{}'], ['g', '{"x": 2}']],
    ['[ {"name": "f", "parameters": {}}, nothing]', ', nothing]', ['f', '{}']],
    ['[1, 2]', '[1, 2]'],
    ['[{"a": 1}]', '[{"a": 1}]'],
    ['[ ', '[ '],
    ['{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}', null, ['f', '{}'], ['g', '{}']],
  ]
  test.each(cases)('%j', (text, ...expected) => {
    expect(read(json, text)).toEqual(expected)
  })
})

const parsers: ToolParser[] = [...TOOL_PARSERS.map((name) => toolParser(name)), llama, json, namedCallParser('f')]
/** Text of the parts that parsers look for, in any order. */
const pieces = fc.oneof(
  fc.constantFrom(
    '<tool_call>',
    '</tool_call>',
    '{"name": "f", "arguments": ',
    '{"a": "}{"}',
    '}',
    '{',
    '[',
    ']',
    ',',
    ';',
    '\n',
    ' ',
    '"',
    '\\',
  ),
  fc.constantFrom(
    '"name"',
    '"parameters": {',
    '"arguments": {',
    ': ',
    '<|python_tag|>',
    '<tool',
    'text',
    '{"name":"g","parameters":{}}',
    '😀',
  ),
  fc.string({ maxLength: 4 }),
)

test('any cut of any text gives, joined, what the whole text gives', () => {
  const texts = fc.array(pieces, { maxLength: 24 }).map((parts) => parts.join(''))
  fc.assert(
    fc.property(fc.constantFrom(...parsers), texts, fc.array(fc.nat(), { maxLength: 12 }), (parser, text, cuts) => {
      const whole = parser.parse(text)
      const joiner = new AnswerJoiner()
      const stream = parser.stream()
      const deltas: AnswerDelta[] = []
      const places = [0, ...cuts.map((cut) => cut % (text.length + 1)).toSorted((a, b) => a - b), text.length]
      for (let i = 1; i < places.length; i++) deltas.push(stream.push(text.slice(places[i - 1], places[i])))
      deltas.push(stream.flush())
      const seen = new Set<number>()
      for (const delta of deltas) {
        joiner.add(delta)
        expect(delta.content).not.toBe('')
        for (const call of delta.tool_calls ?? []) {
          // The name comes first, and once.
          expect(call.function.name !== undefined).toBe(!seen.has(call.index))
          expect(call.id !== undefined).toBe(!seen.has(call.index))
          seen.add(call.index)
        }
      }
      const plain = ({ content, tool_calls }: typeof whole) => ({ content, calls: tool_calls.map((call) => call.function) })
      expect(plain(joiner.answer)).toEqual(plain(whole))
      // Nothing of the text is made up, and without calls nothing is lost.
      if (whole.tool_calls.length === 0) expect(whole.content ?? '').toBe(text)
    }),
    { numRuns: 3000 },
  )
})

test('a long answer is read in a time that grows with its length', () => {
  for (const text of ['<tool_call>{"arguments":{'.repeat(3000), '{"name":"'.repeat(5000), '\n{"arguments":{'.repeat(3000)]) {
    for (const parser of parsers.slice(0, 3)) expect(parser.parse(text)).toEqual({ content: text, tool_calls: [] })
  }
})

describe('tool_choice', () => {
  const tools = [
    {
      type: 'function',
      function: {
        name: 'f',
        parameters: { $defs: { a: { type: 'integer' } }, properties: { x: { $ref: '#/$defs/a' } }, required: ['x'] },
      },
    },
    { type: 'function', function: { name: 'g' } },
  ]
  test('none, auto, required, a name', () => {
    expect(planTools({}, 'auto', null)).toMatchObject({ tools: [], parser: null, format: null })
    expect(planTools({ tools, tool_choice: 'none' }, 'auto', null)).toMatchObject({ parser: null, format: null })
    expect(planTools({ tools }, 'auto', 'x <tool_call>')).toMatchObject({
      parser: { name: 'hermes' },
      format: null,
      most: Infinity,
    })
    expect(planTools({ tools, parallel_tool_calls: false }, 'llama3_json', null)).toMatchObject({
      parser: { name: 'llama3_json' },
      most: 1,
    })
    const required = planTools({ tools, tool_choice: 'required' }, 'auto', null)
    expect(required.parser!.parse('[{"name": "f", "parameters": {"x": 1}}]').tool_calls).toHaveLength(1)
    expect(required.format).toMatchObject({
      schema: { minItems: 1, $defs: { f: { properties: { x: { $ref: '#/$defs/f/$defs/a' } } } } },
    })
    const named = planTools({ tools, tool_choice: { type: 'function', function: { name: 'g' } } }, 'auto', null)
    expect(named.parser!.parse('{"y": 1}').tool_calls[0].function).toEqual({ name: 'g', arguments: '{"y": 1}' })
    const schema = { type: 'object', properties: {}, additionalProperties: false }
    expect(named.format).toEqual({ type: 'json_schema', schema, loose: true })
    const strict = [{ type: 'function', function: { name: 'g', strict: true } }]
    for (const tool_choice of ['required', { type: 'function', function: { name: 'g' } }])
      expect(planTools({ tools: strict, tool_choice }, 'auto', null).format).toMatchObject({ loose: false })
  })
  test('mistakes are named', async () => {
    expect(await userErrorOf(() => planTools({ tool_choice: 'auto' }, 'auto', null))).toContain('there are no tools')
    expect(await userErrorOf(() => planTools({ tools, tool_choice: 'x' }, 'auto', null))).toContain('tool_choice is "x"')
    expect(await userErrorOf(() => planTools({ tools: [{}] }, 'auto', null))).toContain('tools[0]')
    expect(await userErrorOf(() => planTools({ tools }, 'hermed', null))).toContain('Did you mean hermes?')
  })
  test('the parser of a template', () => {
    expect([toolParserFor('{{ "<tool_call>" }}'), toolParserFor('<|start_header_id|>'), toolParserFor(null)]).toEqual([
      'hermes',
      'llama3_json',
      'json',
    ])
  })
})
