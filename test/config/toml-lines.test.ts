import { parse, stringify } from 'smol-toml'
import { expect, test } from 'vitest'
import { pathKey, tomlPositions } from '../../src/config/toml-lines.ts'
import fc from '../fast-check.ts'

const at = (text: string, ...path: (string | number)[]) => {
  const found = tomlPositions(text).get(pathKey(path))
  return found && `${found.line}:${found.column}`
}

test('finds keys in tables, arrays of tables, dotted and quoted keys, inline tables and lists', () => {
  const text = `model = "a" # [not.a.table]
[trainer.args]
  seed = 1
"learning rate" = 2
lora.rank = 3
stop = [
  "x", # a comment, with ] in it
  'y]',
]
text = """
fake = 1
[fake]
"quoted \\""""
[[env]]
id = "one"
[env.args]
n = 1
[[env]]
id = "two"
args = { deep = { er = 5 }, 'k.k' = [1, { z = 2 }] }
`
  parse(text) // the text is TOML
  expect(at(text, 'model')).toBe('1:1')
  expect(at(text, 'trainer', 'args')).toBe('2:1')
  expect(at(text, 'trainer', 'args', 'seed')).toBe('3:3')
  expect(at(text, 'trainer', 'args', 'learning rate')).toBe('4:1')
  expect(at(text, 'trainer', 'args', 'lora', 'rank')).toBe('5:1')
  expect(at(text, 'trainer', 'args', 'stop', 1)).toBe('8:3')
  expect(at(text, 'trainer', 'args', 'text')).toBe('10:1')
  expect(at(text, 'fake')).toBeUndefined()
  expect(at(text, 'env', 0, 'args', 'n')).toBe('17:1')
  expect(at(text, 'env', 1, 'id')).toBe('19:1')
  expect(at(text, 'env', 1, 'args', 'deep', 'er')).toBe('20:19')
  expect(at(text, 'env', 1, 'args', 'k.k', 1, 'z')).toBe('20:43')
})

test('finds Windows line ends and escapes in keys', () => {
  expect(at('a = 1\r\n[b]\r\n"\\u00e9\\t" = 2\r\n', 'b', 'é\t')).toBe('3:1')
  expect(at('"\\U0001F600\\x41\\e\\\\e\t" = 2', '😀A\u001b\\e\t')).toBe('1:1')
})

// Holds the scanner to smol-toml: whatever that library parses, every path of the result has a place, and no other path has one.
test('has a place for every path of any document', () => {
  const key = fc.oneof(fc.constantFrom('a', 'b-c', 'x.y', '', '"', "'", '#[', '=', 'é'), fc.string({ maxLength: 4 }))
  const leaf = fc.oneof(fc.integer(), fc.boolean(), fc.string(), fc.constant('"""\n]}#'), fc.double({ noNaN: true }))
  const { document } = fc.letrec<{ value: unknown; document: Record<string, unknown> }>((tie) => ({
    value: fc.oneof(
      { maxDepth: 3 },
      leaf,
      fc.array(leaf, { maxLength: 3 }),
      fc.array(tie('document'), { maxLength: 2 }),
      tie('document'),
    ),
    document: fc.dictionary(key, tie('value'), { maxKeys: 4 }),
  }))
  fc.assert(
    fc.property(document, (made) => {
      const text = stringify(made)
      const paths: string[] = []
      const visit = (value: unknown, path: string[]) => {
        if (path.length) paths.push(pathKey(path))
        if (typeof value === 'object' && value !== null) for (const [k, v] of Object.entries(value)) visit(v, [...path, k])
      }
      visit(parse(text), [])
      expect([...tomlPositions(text).keys()].toSorted()).toEqual(paths.toSorted())
    }),
    { numRuns: 300 },
  )
})

test('a long list is not searched for lines again for each of its elements', () => {
  const element = `"${'x'.repeat(40)}"`
  const text = `rows = [${Array.from({ length: 20_000 }, () => element).join(',\n')}]`
  const begin = performance.now()
  expect(at(text, 'rows', 19_999)).toBe('20000:1')
  expect(performance.now() - begin).toBeLessThan(3000)
})
