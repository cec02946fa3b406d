/**
 * Constrained answers on the real tokenizers: whatever is drawn among the allowed tokens ends in text that the format allows. Schemas are checked
 * by zod's reader of JSON schemas, which knows nothing of ours.
 */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, describe, expect, test } from 'vitest'
import { z } from 'zod'
import { UserError } from '../../src/common/errors.ts'
import { Random } from '../../src/common/random.ts'
import { Automaton, type State } from '../../src/inference/grammar/automaton.ts'
import { readEbnf } from '../../src/inference/grammar/ebnf.ts'
import { formatGrammar } from '../../src/inference/grammar/formats.ts'
import { createGrammars } from '../../src/inference/grammar/grammars.ts'
import { buildNetwork } from '../../src/inference/grammar/network.ts'
import { regexGrammar } from '../../src/inference/grammar/regex.ts'
import { buildTrie } from '../../src/inference/grammar/token-trie.ts'
import type { GrammarConstraint, GrammarFormat, Grammars } from '../../src/inference/grammar/types.ts'
import { planTools } from '../../src/inference/parsers/tools/choice.ts'
import type { Tokenizer } from '../../src/model/tokenizer/tokenizer.ts'
import { smollm2, userErrorOf, withoutSmollm2 } from '../model/helpers.ts'
import { seed, seedWords } from '../seed.ts'
import fc from '../fast-check.ts'
import { openGgufTokenizer, openTiny } from './tokenizers.ts'

interface Model {
  tokenizer: Tokenizer
  grammars: Grammars
  vocabulary: number
  /** What ends an answer soonest, tried in this order when a walk gets long. */
  closing: number[]
}

async function model(tokenizer: Tokenizer, vocabulary: number): Promise<Model> {
  const grammars = createGrammars(tokenizer, tokenizer.eosTokenIds, vocabulary)
  afterAll(() => grammars.close())
  const closing = ['"', '}', ']', '>', ',', ':', '0', 'a'].map((text) => tokenizer.encode(text, { addSpecialTokens: false })[0])
  return { tokenizer, grammars, vocabulary, closing: [...tokenizer.eosTokenIds, ...closing] }
}

const models: [string, () => Promise<Model>][] = [['tiny', async () => model(await openTiny(), 288)]]
if (!withoutSmollm2) models.push(['SmolLM2', async () => model(await openGgufTokenizer(smollm2), 49152)])

function allowed(constraint: GrammarConstraint, { vocabulary, tokenizer }: Model): number[] {
  const mask = new Uint32Array(Math.ceil(vocabulary / 32) + 1).fill(0xffffffff)
  constraint.fill(mask)
  const ids: number[] = []
  for (let id = 0; id < mask.length * 32; id++) if ((mask[id >> 5] >>> (id & 31)) & 1) ids.push(id)
  const wrong = ids.find(
    (id) =>
      id >= vocabulary || (!tokenizer.eosTokenIds.includes(id) && (tokenizer.isSpecial(id) || tokenizer.idToToken(id) === null)),
  )
  if (wrong !== undefined) throw new Error(`token ${wrong} is allowed`)
  return ids
}

/** Draws among the allowed tokens, uniformly; after `free` of them what ends soonest, and where that goes on for ever, uniformly again. Gives the text. */
async function walk(format: GrammarFormat, which: Model, random: Random, free = 40): Promise<string> {
  const constraint = await which.grammars.constraint(format)
  const ids: number[] = []
  for (let step = 0; step < 3000; step++) {
    const choice = allowed(constraint, which)
    if (choice.length === 0) throw new Error(`nothing may follow ${JSON.stringify(which.tokenizer.decode(ids))}`)
    // Inside of a string nearly everything is allowed: it is closed. Between values a new member is not begun.
    const [quote, ...others] = which.closing.slice(which.tokenizer.eosTokenIds.length)
    const closing = [...which.tokenizer.eosTokenIds, ...(choice.length > 90 ? [quote] : []), ...others, quote]
    const id =
      step < free || step > 1000 ? random.pick(choice) : (closing.find((token) => choice.includes(token)) ?? random.pick(choice))
    constraint.accept(id)
    if (which.tokenizer.eosTokenIds.includes(id)) {
      expect(constraint.complete).toBe(true)
      expect(allowed(constraint, which)).toEqual([...which.tokenizer.eosTokenIds])
      return which.tokenizer.decode(ids)
    }
    ids.push(id)
  }
  throw new Error(`no end: ${which.tokenizer.decode(ids).slice(0, 2000)}`)
}

const person = {
  type: 'object',
  properties: {
    name: { type: 'string', minLength: 1, maxLength: 12 },
    'näme "of" ☃': { type: 'boolean' },
    age: { type: 'integer', minimum: 0, maximum: 130 },
    score: { type: 'number', exclusiveMinimum: -1.5, maximum: 2 },
    tags: { type: 'array', items: { enum: ['a', 'ü', '日本', '"quoted"\n', 7, null] }, minItems: 1, maxItems: 3 },
    address: {
      type: 'object',
      properties: { street: { type: 'string' }, zip: { type: 'string', pattern: '^[0-9]{5}(-[0-9]{4})?$' } },
      required: ['zip'],
      additionalProperties: false,
    },
    when: { type: 'string', format: 'date-time' },
  },
  required: ['name', 'age', 'tags', 'näme "of" ☃'],
  additionalProperties: false,
}
const schemas: Record<string, unknown> = {
  person,
  everything: {},
  'any object': { type: 'object' },
  'optional only': { type: 'object', properties: { a: { type: 'null' }, b: { type: 'boolean' }, c: { const: 'x' } } },
  'other names': {
    type: 'object',
    properties: { ab: { type: 'integer' }, abc: { type: 'boolean' } },
    required: ['abc'],
    additionalProperties: { type: 'string', maxLength: 3 },
  },
  map: { type: 'object', additionalProperties: { type: 'array', items: { type: 'integer' } }, minProperties: 1 },
  tuple: { type: 'array', prefixItems: [{ type: 'integer' }, { enum: ['x', 'y'] }], items: { type: 'boolean' }, maxItems: 4 },
  'alternatives with a base': {
    type: 'object',
    properties: { a: { type: 'integer' }, b: { type: 'integer' } },
    anyOf: [{ required: ['a'] }, { required: ['b'] }],
  },
  merged: {
    allOf: [
      { type: 'object', properties: { a: { type: 'integer', minimum: 3 } }, required: ['a'] },
      {
        type: 'object',
        properties: { a: { type: 'integer', maximum: 12 }, b: { type: 'string', maxLength: 2 } },
        required: ['b'],
      },
    ],
  },
  list: {
    $defs: {
      node: {
        type: 'object',
        properties: { value: { type: 'integer' }, next: { anyOf: [{ $ref: '#/$defs/node' }, { type: 'null' }] } },
        required: ['value', 'next'],
        additionalProperties: false,
      },
    },
    $ref: '#/$defs/node',
  },
  formats: {
    type: 'object',
    properties: Object.fromEntries(
      ['date', 'time', 'date-time', 'uuid', 'ipv4', 'email'].map((format) => [format, { type: 'string', format }]),
    ),
    required: ['date', 'time', 'date-time', 'ipv4', 'email'],
  },
  scalars: { type: ['string', 'integer', 'null'], maxLength: 4, minimum: -20, maximum: -7 },
}

describe.each(models)('%s', (_, open) => {
  const opened = open()
  test.each(Object.keys(schemas))('any walk ends in JSON of the schema: %s', async (name) => {
    const which = await opened
    const schema = schemas[name] as Parameters<typeof z.fromJSONSchema>[0]
    const validator = z.fromJSONSchema(schema)
    const random = new Random(seed)
    for (let i = 0; i < 12; i++) {
      const text = await walk({ type: 'json_schema', schema }, which, random, i * 6)
      let value: unknown
      try {
        value = JSON.parse(text)
      } catch (error) {
        throw new Error(`${JSON.stringify(text)} (${seedWords})`, { cause: error })
      }
      const result = validator.safeParse(value)
      expect(result.error?.message, `${text} (${seedWords})`).toBeUndefined()
    }
  })
  test('json_object is any object, a choice one of its texts, a regex and a grammar what they match', async () => {
    const which = await opened
    const random = new Random(seed)
    for (let i = 0; i < 6; i++) {
      expect(JSON.parse(await walk({ type: 'json_object' }, which, random))).toBeTypeOf('object')
      const choices = ['yes', 'yes, "sir"', 'nein\n', 'да 😀']
      expect(choices).toContain(await walk({ type: 'choice', choices }, which, random))
      // Bounded: where no string is open, a walk that is to end takes a digit before a quote, and would not end.
      const pattern = String.raw`(?:[A-F]\d{2,3}[^"\d\s]|"[\w.-]{1,9}"|é{1,2}[äöü😀])(?:,\s?\.)?`
      expect(await walk({ type: 'regex', pattern }, which, random)).toMatch(new RegExp(`^(?:${pattern})$`, 'u'))
      const grammar = 'root ::= "<" item ("," item){0,3} ">"\nitem ::= [a-c]+ | "-" item'
      expect(await walk({ type: 'grammar', grammar }, which, random)).toMatch(/^<-*[abc]+(,-*[abc]+){0,3}>$/)
    }
  })
  test('a format after a token: anything before it', async () => {
    const which = await opened
    const mark = which.tokenizer.encode('!', { addSpecialTokens: false })[0]
    const constraint = await which.grammars.constraint({ type: 'choice', choices: ['ok'] }, { afterToken: mark })
    const mask = new Uint32Array(Math.ceil(which.vocabulary / 32))
    const bit = (id: number) => (constraint.fill(mask), (mask[id >> 5] >>> (id & 31)) & 1)
    const [a, eos] = [which.tokenizer.encode('a', { addSpecialTokens: false })[0], which.tokenizer.eosTokenIds[0]]
    expect([bit(a), bit(eos), bit(which.vocabulary - 1)]).toEqual([
      1,
      1,
      which.tokenizer.idToToken(which.vocabulary - 1) === null ? 0 : 1,
    ])
    for (const id of [a, a, mark]) constraint.accept(id)
    expect([bit(a), bit(eos), constraint.complete]).toEqual([0, 0, false])
    for (const id of which.tokenizer.encode('ok', { addSpecialTokens: false })) constraint.accept(id)
    expect([bit(a), bit(eos), constraint.complete]).toEqual([0, 1, true])
  })
})

test('required tools: any walk is a list of calls with their arguments; a named one its arguments', async () => {
  const which = await opened()
  const random = new Random(seed)
  const parameters = {
    $defs: { n: { type: 'integer' } },
    type: 'object',
    properties: { x: { $ref: '#/$defs/n' } },
    required: ['x'],
  }
  const tools = [
    { type: 'function', function: { name: 'first', parameters } },
    { type: 'function', function: { name: 'second.one' } },
  ]
  const many = planTools({ tools, tool_choice: 'required' }, 'auto', null)
  const one = planTools({ tools, tool_choice: 'required', parallel_tool_calls: false }, 'auto', null)
  const named = planTools({ tools, tool_choice: { type: 'function', function: { name: 'first' } } }, 'auto', null)
  for (let i = 0; i < 20; i++) {
    for (const plan of [many, one, named]) {
      const text = await walk(plan.format!, which, random, 5 * i)
      const { content, tool_calls } = plan.parser!.parse(text)
      expect([content, tool_calls.length > 0, plan !== many && tool_calls.length !== 1], text).toEqual([null, true, false])
      for (const { function: called } of tool_calls) {
        const given = JSON.parse(called.arguments) as { x?: number }
        expect(
          called.name === 'first' ? Number.isInteger(given.x) : Object.keys(given).length === 0,
          `${text} (${seedWords})`,
        ).toBe(true)
      }
    }
  }
})

test('branches and properties that no value satisfies are left out, and a tool takes an object', async () => {
  const optional = { anyOf: [{ type: 'object', properties: { a: { type: 'integer' } } }, { type: 'null' }] }
  const either = { type: ['string', 'null'], anyOf: [{ minLength: 1, type: 'string' }, { type: 'number' }] }
  expect(await takes(either, '"a"')).toBe(true)
  for (const text of ['""', 'null', '1']) expect(await takes(either, text)).toBe(false)
  const none = { type: 'object', properties: { a: { allOf: [{ type: 'string' }, { type: 'null' }] }, b: { type: 'null' } } }
  expect(await takes(none, '{"b": null}')).toBe(true)
  for (const parameters of [optional, { ...optional.anyOf[0], type: ['object', 'null'] }]) {
    const tools = [{ type: 'function', function: { name: 'f', parameters } }]
    for (const [tool_choice, before, after] of [
      [{ type: 'function', function: { name: 'f' } }, '', ''],
      ['required', '[{"name": "f", "parameters": ', '}]'],
    ] as const) {
      const { schema } = planTools({ tools, tool_choice }, 'auto', null).format as { schema: unknown }
      expect(await takes(schema, `${before}{"a": 1}${after}`)).toBe(true)
      expect(await takes(schema, `${before}null${after}`)).toBe(false)
    }
  }
})

describe('integers and numbers between bounds', () => {
  test('exactly those between them', async () => {
    const which = await opened()
    const random = new Random(seed)
    const accepts = async (schema: unknown, text: string) => {
      const constraint = await which.grammars.constraint({ type: 'json_schema', schema })
      try {
        for (const id of [...which.tokenizer.encode(text), which.tokenizer.eosTokenIds[0]]) constraint.accept(id)
        return true
      } catch {
        return false
      }
    }
    for (let i = 0; i < 40; i++) {
      const scale = random.pick([10, 100, 3000])
      const bounds = [random.int(2 * scale) - scale, random.int(2 * scale) - scale].toSorted((a, b) => a - b)
      const schema = { type: 'integer', minimum: bounds[0], maximum: bounds[1] }
      for (const near of [...bounds, 0, -1, random.int(2 * scale) - scale]) {
        for (const value of [near - 1, near, near + 1])
          expect(await accepts(schema, String(value)), `${value} in ${String(bounds)}`).toBe(
            value >= bounds[0] && value <= bounds[1],
          )
      }
      const [low, high] = bounds.map((bound) => bound / 10)
      const open = { type: 'number', exclusiveMinimum: low, exclusiveMaximum: high }
      const closed = { type: 'number', minimum: low, maximum: high }
      for (const near of [low, high, 0]) {
        for (const tenths of [-0.1, -0.01, 0, 0.01, 0.1]) {
          const text = (near + tenths).toFixed(2)
          const value = Number(text)
          if (low < high)
            expect(await accepts(open, text), `${text} in ${low}..${high}, open`).toBe(
              value > low && value < high && !/^-0\.00$/.test(text),
            )
          expect(await accepts(closed, text), `${text} in ${low}..${high}`).toBe(
            value >= low && value <= high && !/^-0\.00$/.test(text),
          )
        }
      }
    }
  })
})

function opened(): Promise<Model> {
  return openTiny().then((tokenizer) => model(tokenizer, 288))
}

test('numbers need no more decimals than they have, and none is rounded to a bound that is excluded', async () => {
  for (const [schema, good, bad] of [
    [{ minimum: 0.5 }, ['5', '0.5', '0.50', '0.55', '10'], ['0', '0.4', '-5', '5.', '05']],
    [{ minimum: -1.25, maximum: 1.25 }, ['-1', '0', '-0.3', '1.2', '1.25', '1.250'], ['2', '-2', '1.3', '1.251', '-0']],
    [{ exclusiveMinimum: 0, exclusiveMaximum: 0.95 }, ['0.9', '0.949', '0.001'], ['0', '0.0', '0.95', '1']],
    [{ exclusiveMaximum: 1e14 }, ['99999999999999', '99999999999999.9', '9.999999'], ['99999999999999.999999', '1e14']],
    [{ exclusiveMinimum: 123456789.123456 }, ['123456789.123457', '123456790'], ['123456789.123456000001', '123456789.123456']],
  ] as const) {
    for (const text of good) expect(await takes({ type: 'number', ...schema }, text), text).toBe(true)
    for (const text of bad) expect(await takes({ type: 'number', ...schema }, text), text).toBe(false)
  }
  const { grammars } = await opened()
  for (const type of ['integer', 'number'])
    await expect(grammars.constraint({ type: 'json_schema', schema: { type, minimum: 5e15 } })).rejects.toThrow(/too many digits/)
})

test('a mask holds exactly the tokens that are taken', async () => {
  const which = await opened()
  const random = new Random(seed)
  const formats: GrammarFormat[] = [
    { type: 'json_schema', schema: person },
    { type: 'regex', pattern: '[^a-yé]{1,4}(?:ö|[ß-ü])+' },
    { type: 'grammar', grammar: 'root ::= "é" root "x" | [€-₿]* | "(" root ")" root' },
  ]
  for (const format of formats) {
    for (let i = 0; i < 10; i++) {
      const taken: number[] = []
      const replay = async () => {
        const constraint = await which.grammars.constraint(format)
        for (const id of taken) constraint.accept(id)
        return constraint
      }
      for (let step = 0; step < 12; step++) {
        const choice = new Set(allowed(await replay(), which))
        for (let id = 0; id < which.vocabulary; id += 1 + random.int(12)) {
          const constraint = await replay()
          if (choice.has(id)) constraint.accept(id)
          else expect(() => constraint.accept(id), `token ${id} (${seedWords})`).toThrow(`Token ${id}`)
        }
        const next = random.pick([...choice])
        if (which.tokenizer.eosTokenIds.includes(next)) break
        taken.push(next)
      }
    }
  }
})

test('only whole characters are written: bytes that are no UTF-8 are not drawn', async () => {
  const which = await opened()
  const random = new Random(seed)
  for (let i = 0; i < 100; i++) {
    const text = await walk({ type: 'regex', pattern: '[^a]{1,8}[à-ÿ一-三]{2}.' }, which, random)
    expect(text, seedWords).toMatch(/^[^a]{1,8}[à-ÿ一-三]{2}[^\n\r]$/u)
    expect(Buffer.from(text).toString()).toBe(text)
  }
})

test('a class has what negated ones inside it have; a group has its name as JavaScript or Python writes it; a choice may be empty', async () => {
  const which = await opened()
  const random = new Random(seed)
  // Bounded, as above.
  for (const pattern of [
    String.raw`[\s\S]{1,6}`,
    String.raw`[\Wa]{1,6}`,
    String.raw`[^\D5]{1,6}`,
    String.raw`[^\W\d_]{1,6}`,
    '(?P<a>b{1,3})|(?<c>d)',
  ]) {
    const expected = new RegExp(`^(?:${pattern.replace('?P<', '?<')})$`, 'u')
    for (let i = 0; i < 5; i++) expect(await walk({ type: 'regex', pattern }, which, random), seedWords).toMatch(expected)
  }
  expect([regexGrammar(String.raw`[\s\S]`), regexGrammar(String.raw`[\Da0-8]`)]).toEqual([
    '[\\u0000-\\U0010FFFF]',
    '[\\u0000-8:-\\U0010FFFF]',
  ])
  expect(await walk({ type: 'choice', choices: [''] }, which, random)).toBe('')
})

test('references that double each other, and rules that lean on each other, are refused or read soon', async () => {
  const { grammars } = await opened()
  const begin = performance.now()
  const $ref = (i: number) => ({ $ref: `#/$defs/d${i}` })
  for (const more of [{}, { minLength: 1 }]) {
    const $defs: Record<string, unknown> = { d40: { type: 'object', properties: { x: $ref(40) }, required: ['x'] } }
    for (let i = 0; i < 40; i++)
      $defs[`d${i}`] = {
        anyOf: [
          { ...$ref(i + 1), ...more },
          { ...$ref(i + 1), ...more },
        ],
      }
    const schema = { $defs, ...$ref(0), ...more }
    await expect(grammars.constraint({ type: 'json_schema', schema })).rejects.toThrow(/too many references and branches/)
  }
  const rules = Array.from({ length: 6000 }, (_, i) => `a${i} ::= a${i + 1}`)
  const grammar = ['root ::= "a" a0', ...rules, 'a6000 ::= "" | "b"'].join('\n')
  await grammars.constraint({ type: 'grammar', grammar })
  expect(performance.now() - begin).toBeLessThan(30_000)
})

test('long chains of references, long names and deep repetitions do not exhaust the stack', async () => {
  const chain = Array.from({ length: 1000 }, (_, i) => [`d${i}`, { properties: { n: { $ref: `#/$defs/d${i + 1}` } } }])
  const $defs = { ...Object.fromEntries(chain), d1000: { type: 'null' } }
  const schema = { $ref: '#/$defs/d0', $defs }
  expect(await takes(schema, '{"n": {"n": {"n": {}}}}')).toBe(true)
  expect(await takes(schema, '{"n": null}')).toBe(false)
  const name = 'a'.repeat(2800)
  const named = { properties: { [name]: { type: 'null' }, 'a"b': {}, '': {} }, required: [name], additionalProperties: true }
  expect(await takes(named, `{"${name}": null, "${name}a": 1, "aa": 2, "b": 3}`)).toBe(true)
  for (const text of [`{"${name}": 1}`, `{"${name}": null, "${name}": 1}`, `{"${name}": null, "x": 1, "": 1}`])
    expect(await takes(named, text)).toBe(false)
  const { grammars } = await opened()
  const grammar = `root ::= ${'('.repeat(190)}"a"${`)${'*'.repeat(190)}`.repeat(190)}`
  await expect(grammars.constraint({ type: 'grammar', grammar })).rejects.toThrow(/repetitions are nested more than 200 deep/)
  const wide = `root ::= ("a"${'*'.repeat(190)} "b"?)${'*'.repeat(5)} | "c"${'*'.repeat(199)}`
  await grammars.constraint({ type: 'grammar', grammar: wide })
})

test('many schemas that apply at once, and long lists beside many branches, are refused soon', () => {
  const times = <T>(n: number, of: (i: number) => T) => Array.from({ length: n }, (_, i) => of(i))
  const wide: object[] = [
    { allOf: times(20_000, (i) => ({ required: [`n${i}`] })) },
    { allOf: times(12_000, (i) => ({ properties: { [`n${i}`]: {} } })) },
    { enum: times(3000, (i) => i), anyOf: times(3000, (i) => ({ type: 'integer', minimum: i })) },
  ]
  for (const schema of wide) {
    const begin = performance.now()
    expect(() => formatGrammar({ type: 'json_schema', schema })).toThrow(/too much of the schema applies at once/)
    expect(performance.now() - begin).toBeLessThan(8000)
  }
  const parts = times(30, (i) => ({ properties: Object.fromEntries(times(20, (j) => [`p${i}_${j}`, { type: 'string' }])) }))
  formatGrammar({ type: 'json_schema', schema: { allOf: parts } })
  const values = times(10_000, (i) => `value ${i}`)
  formatGrammar({ type: 'json_schema', schema: { type: 'string', anyOf: [{ enum: values }, { maxLength: 3 }] } })
})

test('wide classes, long lists and long rows of repetitions are read soon, or refused', async () => {
  const { grammars } = await opened()
  const begin = performance.now()
  await grammars.constraint({ type: 'regex', pattern: String.raw`[\u0000-\ud7ff]`.repeat(5000) })
  await grammars.constraint({ type: 'json_schema', schema: { enum: Array.from({ length: 30_000 }, (_, i) => i) } })
  const refused = async (format: GrammarFormat) => await userErrorOf(() => grammars.constraint(format))
  expect(await refused({ type: 'grammar', grammar: `root ::= "a"${'*'.repeat(100_000)}` })).toContain('more than 200 deep')
  expect(await refused({ type: 'regex', pattern: 'a'.repeat(3_000_000) })).toContain('longer than 200000 characters')
  expect(await refused({ type: 'choice', choices: ['a'.repeat(20_000_000)] })).toContain('at most 500000 characters in total')
  expect((await refused({ type: 'regex', pattern: `${'a'.repeat(100_000)}(` })).length).toBeLessThan(400)
  expect(performance.now() - begin).toBeLessThan(20_000)
})

test('what is worked out for a grammar is forgotten before it is too much, and who stands in it goes on as before', () => {
  const trie = buildTrie(256, (id) => Uint8Array.of(id))
  const automatonOf = () => new Automaton(buildNetwork(readEbnf(formatGrammar({ type: 'json_object' }))), trie)
  const automaton = automatonOf()
  const random = new Random(seed)
  const nested = (): string[] => ['{"a":', ...Array.from({ length: 40 }, () => random.pick(['[', '{"a":']))]
  const after = (which: Automaton, text: string, from = which.start): State =>
    Buffer.from(text).reduce((state, byte) => which.step(state, byte)!, from)
  const opened = nested()
  let state = after(automaton, opened.join(''))
  const first = automaton.maskOf(automaton.start)
  for (let i = 0; i < 1000; i++) after(automaton, nested().join(''))
  const states = new Set([automaton.start])
  for (const { next } of states) for (const one of next) if (one) states.add(one)
  const stacks = new Set(automaton.start.places.flatMap(({ stack }) => stack ?? []))
  for (const { above } of stacks) for (const one of above.values()) stacks.add(one)
  // Of about 90 000 states.
  expect(states.size).toBeLessThanOrEqual(40_000)
  expect(stacks.size).toBeLessThanOrEqual(40_000)
  const fresh = automatonOf()
  expect(fresh.maskOf(fresh.start)).toEqual(first)
  expect(automaton.maskOf(automaton.start)).toEqual(first)
  let other = after(fresh, `${opened.join('')}0`)
  state = after(automaton, '0', state)
  for (const open of opened.toReversed()) {
    expect(automaton.maskOf(state)).toEqual(fresh.maskOf(other))
    const close = open === '[' ? ']' : '}'
    state = after(automaton, close, state)
    other = after(fresh, close, other)
  }
  expect(state.accepting).toBe(true)
})

test('states that stand in many places at once are forgotten sooner', () => {
  const trie = buildTrie(256, (id) => Uint8Array.of(id))
  const automaton = new Automaton(buildNetwork(readEbnf(formatGrammar({ type: 'regex', pattern: 'x{0,9000}' }))), trie)
  let state = automaton.start
  for (let i = 0; i < 300; i++) {
    automaton.maskOf(state)
    state = automaton.step(state, 120)!
  }
  const states = new Set([automaton.start])
  for (const { next } of states) for (const one of next) if (one) states.add(one)
  // Of 2.6 million.
  expect([...states].reduce((sum, { places }) => sum + places.length, 0)).toBeLessThan(1_700_000)
  expect(automaton.bytes).toBeLessThan(110e6)
})

test('compiled grammars are kept as long as they do not take too much together', { timeout: 60_000 }, async () => {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const heap = () => (collect(), process.memoryUsage().heapUsed)
  const grammars = createGrammars(await openTiny(), [1], 288)
  const before = heap()
  for (let i = 0; i < 8; i++) {
    const choices = Array.from({ length: 10_000 }, (_, n) => `${n}`.padEnd(19, `${i}-`))
    await grammars.constraint({ type: 'choice', choices })
  }
  // Each takes 80 MB.
  expect(heap() - before).toBeLessThan(350e6)
  expect(heap() - before).toBeGreaterThan(150e6)
  grammars.close()
})

/** Whether a text satisfies a schema, by its grammar. */
async function takes(schema: unknown, text: string): Promise<boolean> {
  const { grammars, tokenizer } = await opened()
  const constraint = await grammars.constraint({ type: 'json_schema', schema })
  try {
    for (const id of [...tokenizer.encode(text), tokenizer.eosTokenIds[0]]) constraint.accept(id)
    return true
  } catch {
    return false
  }
}

test('what one of two schemas says of properties and items that only the other one names holds, too', async () => {
  const [a, b] = [{ properties: { a: { type: 'integer' } } }, { properties: { b: { type: 'integer' } } }]
  const closed = { type: 'object', ...a, additionalProperties: false }
  const list = { allOf: [{ prefixItems: [{ type: 'string' }] }, { items: { maxLength: 1 } }] }
  const number = { allOf: [{ type: ['number', 'null'] }, { type: 'integer', minimum: 3 }] }
  const cases: [object, string, boolean][] = [
    [{ allOf: [closed, b] }, '{"a":1}', true],
    [{ allOf: [closed, b] }, '{"a":1,"b":2}', false],
    [{ allOf: [b, closed] }, '{"b":2}', false],
    [{ $defs: { closed }, $ref: '#/$defs/closed', ...b }, '{"a":1,"b":2}', false],
    [{ ...b, anyOf: [closed, { required: ['b'] }] }, '{"a":1,"b":2}', false],
    [{ ...b, anyOf: [closed, { required: ['b'] }] }, '{"b":2}', true],
    [{ allOf: [a, { additionalProperties: { minimum: 5 } }] }, '{"a":5}', true],
    [{ allOf: [a, { additionalProperties: { minimum: 5 } }] }, '{"a":4}', false],
    [{ ...list, minItems: 1 }, '["x"]', true],
    [{ ...list, minItems: 1 }, '["xy"]', false],
    [{ $defs: { x: { $ref: '#/$defs/y' }, y: { minimum: 3 } }, $ref: '#/$defs/x', type: 'integer' }, '3', true],
    [{ $defs: { x: { $ref: '#/$defs/y' }, y: { minimum: 3 } }, $ref: '#/$defs/x', type: 'integer' }, '3.5', false],
    [{ $defs: { x: { $ref: '#/$defs/y' }, y: { minimum: 3 } }, $ref: '#/$defs/x', type: 'integer' }, '2', false],
    [number, '3', true],
    [number, '3.5', false],
  ]
  for (const [schema, text, right] of cases) expect(await takes(schema, text), `${text} of ${JSON.stringify(schema)}`).toBe(right)
  await expect(takes({ allOf: [closed, { ...b, required: ['b'] }] }, '{}')).rejects.toThrow(/allows no value/)
  const loose = { type: 'json_schema', schema: { allOf: [closed, { ...b, required: ['b'] }] }, loose: true } as const
  expect(await walk(loose, await opened(), new Random(seed))).toContain('"b"')
})

test('a range may go over the halves of surrogate pairs, and not begin or end in them', async () => {
  const { grammars } = await opened()
  for (const pattern of ['^[\\u00e9-\\uFFFF]+$', '[é-😀]+']) {
    expect(await takes({ type: 'string', pattern }, '"é東"')).toBe(true)
    expect(await takes({ type: 'string', pattern }, '"a"')).toBe(false)
  }
  for (const pattern of ['[\\uD83D]', '[a-\\uD83D]', '[\\uDC00-\\uFFFF]', '\\uD83D\\uDE00'])
    await expect(grammars.constraint({ type: 'regex', pattern })).rejects.toThrow(/halves of surrogate pairs/)
})

test('a dot, \\S and classes without \\s leave out all that JavaScript has as line ends and white space', async () => {
  const signs = ['\u00a0', '\u2003', '\u2028', '\u2029', '\u3000', '\ufeff', '\u0085', 'é', '\u200b']
  for (const pattern of ['.', String.raw`\S`, String.raw`[^\s]`, String.raw`[^\sé]`, String.raw`[\s\S]`, String.raw`[\Sx]`])
    for (const sign of signs)
      expect(
        await takes({ type: 'string', pattern: `^${pattern}$` }, JSON.stringify(sign)),
        `${JSON.stringify(sign)} of ${pattern}`,
      ).toBe(new RegExp(`^${pattern}$`, 'u').test(sign))
})

test('a list of values keeps to the bounds beside it, and a bound alone may have decimals', async () => {
  const { grammars } = await opened()
  const cases: [object, string, boolean][] = [
    [{ type: 'integer', enum: [1, 50], maximum: 10 }, '1', true],
    [{ type: 'integer', enum: [1, 50], maximum: 10 }, '50', false],
    [{ enum: ['ab', 'abc', 7], maxLength: 2 }, '"abc"', false],
    [{ enum: ['ab', 'abc', 7], maxLength: 2 }, '7', true],
    [{ enum: [1, 2, 3], minimum: 1, exclusiveMinimum: true, maximum: 3, exclusiveMaximum: true }, '2', true],
    [{ enum: [1, 2, 3], minimum: 1, exclusiveMinimum: true, maximum: 3, exclusiveMaximum: true }, '1', false],
    [{ enum: [1, 2, 3], minimum: 1, exclusiveMinimum: true, maximum: 3, exclusiveMaximum: true }, '3', false],
    [{ enum: [1, 'a', null], anyOf: [{ type: 'string' }, { minimum: 2, type: 'integer' }] }, '"a"', true],
    [{ enum: [1, 'a', null], anyOf: [{ type: 'string' }, { minimum: 2, type: 'integer' }] }, '1', false],
    [{ allOf: [{ const: { a: 1, b: [2] } }, { properties: { b: { items: { minimum: 2 } } } }] }, '{"a":1,"b":[2]}', true],
    [{ enum: [{}, { a: 'x' }, { a: 1 }], required: ['a'], properties: { a: { type: 'integer' } } }, '{"a":1}', true],
    [{ enum: [{}, { a: 'x' }, { a: 1 }], required: ['a'], properties: { a: { type: 'integer' } } }, '{}', false],
    [{ enum: [{}, { a: 'x' }, { a: 1 }], required: ['a'], properties: { a: { type: 'integer' } } }, '{"a":"x"}', false],
    [{ type: 'object', properties: { b: false, c: { enum: ['x'], type: 'null' } }, additionalProperties: true }, '{"a":1}', true],
    [
      { type: 'object', properties: { b: false, c: { enum: ['x'], type: 'null' } }, additionalProperties: true },
      '{"b":1}',
      false,
    ],
    [
      { type: 'object', properties: { b: false, c: { enum: ['x'], type: 'null' } }, additionalProperties: true },
      '{"c":1}',
      false,
    ],
    [{ type: 'object', maxProperties: 0 }, '{}', true],
    [{ type: 'object', maxProperties: 0 }, '{"a":1}', false],
    [{ type: 'number', minimum: 0.01 }, '0.01', true],
    [{ type: 'number', minimum: 0.01 }, '0.00', false],
    [{ type: 'number', minimum: 0.01 }, '123456.789', true],
    [{ type: 'number', exclusiveMaximum: 0.005 }, '-12.0686', true],
    [{ type: 'number', exclusiveMinimum: 0.5 }, '0.5658', true],
    [{ type: 'number', exclusiveMinimum: 0.5 }, '0.500', false],
    [{ type: 'number', maximum: 0.5 }, '-0.0686', true],
  ]
  for (const [schema, text, right] of cases) expect(await takes(schema, text), `${text} of ${JSON.stringify(schema)}`).toBe(right)
  await expect(grammars.constraint({ type: 'json_schema', schema: { enum: ['a', 'b'], const: 'c' } })).rejects.toThrow(/no value/)
})

test('any schema, expression or grammar either works or is refused in a sentence, soon', async () => {
  const { grammars } = await opened()
  const keys = [
    'type',
    'properties',
    'items',
    'anyOf',
    'allOf',
    '$ref',
    'enum',
    'required',
    'minItems',
    'maxLength',
    'pattern',
    'minimum',
    '$defs',
    'a',
  ]
  const words = ['object', 'array', 'string', 'integer', '#', '#/$defs/a', '#/properties/a', 'a', '^a+$', '(', '']
  const { schema } = fc.letrec((tie) => ({
    schema: fc.oneof(
      { depthSize: 'small', withCrossShrink: true },
      fc.constantFrom<unknown>(...words),
      fc.constantFrom<unknown>(true, false, null, 0, 1, 3, -2, 1.5, 1e9, {}, []),
      fc.dictionary(fc.constantFrom(...keys), tie('schema'), { maxKeys: 4 }),
      fc.array(tie('schema'), { maxLength: 3 }),
    ),
  }))
  const text = fc.array(
    fc.constantFrom('(', ')', '[', ']', 'a', '-', '|', '*', '+', '?', '{2,3}', '{', '\\', 'd', '^', '$', '.', '"', ' ', 'é'),
    { maxLength: 14 },
  )
  const formats: fc.Arbitrary<GrammarFormat> = fc.oneof(
    schema.map((value): GrammarFormat => ({ type: 'json_schema', schema: value })),
    text.map((parts): GrammarFormat => ({ type: 'regex', pattern: parts.join('') })),
    text.map((parts): GrammarFormat => ({ type: 'grammar', grammar: `root ::= a | ${parts.join('')}\na ::= "x" root | [a-c]` })),
  )
  await fc.assert(
    fc.asyncProperty(formats, async (format) => {
      let constraint: GrammarConstraint
      try {
        constraint = await grammars.constraint(format)
      } catch (error) {
        expect(error).toBeInstanceOf(UserError)
        return
      }
      constraint.fill(new Uint32Array(9))
    }),
    { numRuns: 1500 },
  )
})

describe('formats that cannot be held are said so, and others work on', () => {
  const wrong: [string, GrammarFormat, string][] = [
    ['not a schema', { type: 'json_schema', schema: 5 }, 'response_format: $: a schema must be an object'],
    [
      'type',
      { type: 'json_schema', schema: { properties: { a: { type: 'float' } } } },
      '$.properties.a: the type "float" is not one of',
    ],
    ['keyword', { type: 'json_schema', schema: { items: { not: {} } } }, 'the keyword "not" cannot be enforced'],
    ['reference', { type: 'json_schema', schema: { $ref: '#/$defs/a' } }, '$ref "#/$defs/a" points to nothing'],
    [
      'endless',
      { type: 'json_schema', schema: { type: 'object', properties: { a: { $ref: '#' } }, required: ['a'], $ref: '#' } },
      'nested more than 32 deep',
    ],
    [
      'endless reference',
      {
        type: 'json_schema',
        schema: { $defs: { n: { properties: { n: { $ref: '#/$defs/n' } }, required: ['n'] } }, $ref: '#/$defs/n' },
      },
      'requires itself',
    ],
    [
      'a circle of references',
      {
        type: 'json_schema',
        schema: { $defs: { x: { $ref: '#/$defs/y' }, y: { $ref: '#/$defs/x' } }, $ref: '#/$defs/x', type: 'integer' },
      },
      'nested more than 32 deep',
    ],
    [
      'two endless references',
      {
        type: 'json_schema',
        schema: {
          $defs: {
            m: { properties: { n: { $ref: '#/$defs/m' } }, required: ['n'] },
            n: { properties: { n: { $ref: '#/$defs/n' } }, required: ['n'] },
          },
          properties: { a: { allOf: [{ $ref: '#/$defs/m' }, { $ref: '#/$defs/n' }] } },
        },
      },
      'lead to each other without end',
    ],
    ['bounds', { type: 'json_schema', schema: { type: 'integer', minimum: 5, maximum: 3 } }, 'no integer between 5 and 3'],
    ['pattern', { type: 'json_schema', schema: { type: 'string', pattern: '(?=a)' } }, 'lookahead'],
    ['depth', { type: 'json_schema', schema: JSON.parse('{"items":'.repeat(90) + '{}' + '}'.repeat(90)) }, 'more than 64 deep'],
    ['regex', { type: 'regex', pattern: '(a' }, 'a parenthesis is not closed'],
    ['regex too long', { type: 'regex', pattern: '((a{1,999}){1,999}){1,999}' }, 'repeats more than'],
    ['choice', { type: 'choice', choices: [] }, 'A choice must have 1 to'],
    ['grammar', { type: 'grammar', grammar: 'root ::= nothing' }, 'the rule "nothing" is not defined'],
    ['left recursion', { type: 'grammar', grammar: 'root ::= x\nx ::= y? root "a" | "b"\ny ::= "c"' }, 'begins with itself'],
    ['too many nodes', { type: 'grammar', grammar: 'root ::= "a"{300000}' }, 'grammar is too large'],
    ['too ambiguous', { type: 'regex', pattern: '(?:a?){20000}' }, 'in too many ways'],
    ['grammar text', { type: 'grammar', grammar: 'root ::= "a' }, 'line 1, column 12: a text is not closed'],
  ]
  test('each in a sentence', async () => {
    const { grammars } = await opened()
    const alive = await grammars.constraint({ type: 'choice', choices: ['hello'] })
    for (const [name, format, message] of wrong)
      expect(await userErrorOf(() => grammars.constraint(format)), name).toContain(message)
    expect(
      await userErrorOf(() => grammars.constraint({ type: 'grammar', grammar: '' }, { field: 'structured_outputs' })),
    ).toContain('structured_outputs: ')
    const mask = new Uint32Array(9)
    alive.fill(mask)
    expect((mask[104 >> 5] >>> (104 & 31)) & 1).toBe(1)
    expect(() => alive.accept(105)).toThrow('Token 105 is not one that the grammar allows here')
  })
  test('what a loose schema has beside that is ignored, and the rest is held', async () => {
    const two = { type: 'object', properties: { a: { type: 'null' }, b: { type: 'null' } } }
    for (const [schema, good, bad] of [
      [{ ...two, minProperties: 1 }, ['{}', '{"a": null}'], ['{"a": 1}']],
      [{ ...two, maxProperties: 1 }, ['{"a": null, "b": null}'], ['{"c": null}']],
      [{ ...two, maxProperties: 0, additionalProperties: { type: 'null' } }, ['{"c": null}'], ['{"c": 1}']],
      [{ type: 'object', minProperties: 3 }, ['{"c": 1}'], ['{}']],
      [{ type: 'string', enum: ['a', 'b', 'cc'], pattern: '^a$', maxLength: 1 }, ['"a"', '"b"'], ['"c"', '"cc"']],
      [{ type: 'number', exclusiveMinimum: 1e-7, maximum: 1.00000001 }, ['0', '1.000001'], ['-1', '1.000002']],
      [{ type: 'number', minimum: -1.7e308, maximum: 1e300 }, ['-5.5', '1e9'], ['true']],
      [{ allOf: [{ type: 'string', pattern: '^a+$' }, { pattern: '^.b$' }] }, ['"aa"'], ['"ab"']],
    ] as const) {
      const { grammars, tokenizer } = await opened()
      for (const text of [...good, ...bad]) {
        const constraint = await grammars.constraint({ type: 'json_schema', schema, loose: true })
        const take = () => [...tokenizer.encode(text), tokenizer.eosTokenIds[0]].forEach((id) => constraint.accept(id))
        if (good.some((one) => one === text)) take()
        else expect(take, text).toThrow('the grammar')
      }
      expect(await userErrorOf(() => grammars.constraint({ type: 'json_schema', schema }))).toContain('$')
    }
    const { grammars } = await opened()
    for (const schema of [{ type: 'number', minimum: 2, maximum: 1 }, { allOf: [{ const: 1 }, { const: 2 }] }])
      expect(await userErrorOf(() => grammars.constraint({ type: 'json_schema', schema, loose: true }))).toContain('$')
  })
  test('of a loose schema what can be held is held', async () => {
    const schema = {
      type: 'object',
      properties: {
        tags: { type: 'array', items: { enum: ['a', 'b'] }, uniqueItems: true, minItems: 1, maxItems: 2 },
        name: { type: 'string', pattern: '^(?!x)[a-z]+$', maxLength: 3 },
        code: { type: 'string', pattern: '^[ab]{2}$', minLength: 2 },
        rest: { type: 'integer', multipleOf: 5, not: { const: 0 }, minimum: 0, maximum: 9 },
        not: { type: 'boolean' },
      },
      required: ['tags', 'name', 'code', 'rest', 'not'],
      additionalProperties: false,
      dependentRequired: { tags: ['name'] },
    }
    const which = await opened()
    const random = new Random(seed)
    for (let i = 0; i < 20; i++) {
      const made: unknown = JSON.parse(await walk({ type: 'json_schema', schema, loose: true }, which, random))
      const { tags, name, code, rest, not } = made as { tags: string[]; name: string; code: string; rest: number; not: boolean }
      expect(tags.every((tag) => 'ab'.includes(tag)) && tags.length >= 1 && tags.length <= 2).toBe(true)
      expect(Array.from(name).length).toBeLessThanOrEqual(3)
      expect(code).toMatch(/^[ab]{2}$/)
      expect(rest >= 0 && rest <= 9 && Number.isInteger(rest)).toBe(true)
      expect(typeof not).toBe('boolean')
    }
  })
  test('compiled grammars are kept, the oldest are dropped, and constraints of those live on', async () => {
    const which = await opened()
    const random = new Random(seed)
    const first = await which.grammars.constraint({ type: 'choice', choices: ['first'] })
    for (let i = 0; i < 50; i++)
      expect(await walk({ type: 'choice', choices: [`choice ${i}`] }, which, random)).toBe(`choice ${i}`)
    for (const id of which.tokenizer.encode('first')) first.accept(id)
    expect(first.complete).toBe(true)
  })
})
