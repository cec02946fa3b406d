import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, sep } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { bundledEnvironments, loadEnvironment, parseArgs } from '../../src/environments/load.ts'
import { z } from '../../src/environments/index.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-env-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** A user's file as docs/environments.md shows it. */
const userFile = `
import { parseArgs, Rubric, SingleTurnEnv, z, type RewardArgs } from 'dawn-rl/environments'
const shout = ({ text }: RewardArgs): number => (text === text.toUpperCase() ? 1 : 0)
export default function loadEnvironment(args: Record<string, unknown>): Promise<SingleTurnEnv> {
  const { count } = parseArgs('shout', { count: z.int().min(2).default(4) }, args)
  return SingleTurnEnv.create({ id: 'shout', rubric: new Rubric({ shout }),
    dataset: Array.from({ length: count }, (_, i) => ({ question: 'Shout ' + i })), evalSize: 1 })
}`

beforeAll(() => {
  writeFileSync(join(folder, 'package.json'), '{"type": "module"}')
  writeFileSync(join(folder, 'shout.ts'), userFile)
  writeFileSync(join(folder, 'throws.ts'), 'export default () => { throw new Error("no data here") }')
  writeFileSync(join(folder, 'syntax.js'), 'export default (')
  writeFileSync(join(folder, 'nothing.js'), 'export const x = 1')
  writeFileSync(join(folder, 'partial.js'), 'export default () => ({ id: "p", dataset: [] })')
  writeFileSync(join(folder, 'rows.js'), 'export default () => ({ id: "r", dataset: [{ question: "q" }], evalDataset: [] })')
  const pkg = join(folder, 'node_modules', 'env-of-a-package')
  mkdirSync(pkg, { recursive: true })
  writeFileSync(join(pkg, 'package.json'), '{"name": "env-of-a-package", "type": "module", "exports": {"import": "./main.js"}}')
  writeFileSync(
    join(pkg, 'main.js'),
    'export default ({ id }) => ({ id, dataset: [{ exampleId: 0, prompt: [], answer: "", info: {} }], evalDataset: [], rubric: { score() {} }, rollout() {} })',
  )
})

const refusal = async (id: string, args: Record<string, unknown> = {}) => {
  const error = await loadEnvironment(id, args, { base: folder }).then(
    () => undefined,
    (thrown: unknown) => thrown,
  )
  expect(error).toBeInstanceOf(UserError)
  return (error as UserError).message.replaceAll(folder, '.')
}

/** Runs in a Node of its own, as a user's run does: under vitest, vite resolves imports and our hook is not asked. */
function inNode(body: string): unknown {
  const load = new URL('../../src/environments/index.ts', import.meta.url).href
  const script = `import { loadEnvironment, Rubric } from ${JSON.stringify(load)}\nconst base = ${JSON.stringify(folder)}\n${body}`
  return JSON.parse(execFileSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8', cwd: folder }))
}

describe('where an environment comes from', () => {
  test('the bundled ones', async () => {
    expect(bundledEnvironments()).toEqual(expect.arrayContaining(['arithmetic', 'reverse-text', 'short-answers']))
    expect((await loadEnvironment('arithmetic')).id).toBe('arithmetic')
  })
  test("a user's own .ts file, in a folder that knows nothing of us", () => {
    expect(
      inNode(`
        const env = await loadEnvironment('./shout.ts', { count: 7 }, { base })
        console.log(JSON.stringify([env.id, env.dataset.length, env.evalDataset.length, env.rubric instanceof Rubric]))`),
    ).toEqual(['shout', 6, 1, true])
  })
  test('a .ts file in a folder that npm init made: its package.json says commonjs', () => {
    const sub = join(folder, 'commonjs')
    mkdirSync(sub)
    writeFileSync(join(sub, 'package.json'), '{"type": "commonjs"}')
    writeFileSync(join(sub, 'mine.ts'), `export * from './more.ts'\nexport { default } from './more.ts'`)
    writeFileSync(join(sub, 'more.ts'), userFile)
    expect(inNode(`console.log(JSON.stringify((await loadEnvironment('commonjs/mine.ts', {}, { base })).id))`)).toBe('shout')
  })
  test("a user's .js file in such a folder is refused with what to do, and so are losses, advantages and filters", () => {
    const sub = join(folder, 'plain')
    mkdirSync(sub)
    writeFileSync(join(sub, 'package.json'), '{"type": "commonjs"}')
    writeFileSync(join(sub, 'mine.js'), `import fs from 'node:fs'\nexport default () => fs`)
    writeFileSync(join(sub, 'loss.js'), 'export default () => 0')
    const source = (path: string) => JSON.stringify(new URL(`../../src/${path}`, import.meta.url).href)
    const messages = inNode(`
      const { loadLoss } = await import(${source('trainer/losses/index.ts')})
      const { loadAlgorithm } = await import(${source('orchestrator/plugins.ts')})
      const plugins = { advantage: 'group_mean', advantage_args: {}, filters: [], filter_args: {} }
      const told = await Promise.allSettled([
        loadEnvironment('./plain/mine.js', {}, { base }), loadLoss('plain/loss.js', {}),
        loadAlgorithm({ ...plugins, advantage: 'plain/loss.js' }), loadAlgorithm({ ...plugins, filters: ['plain/loss.js'] })])
      console.log(JSON.stringify(told.map(({ reason }) => reason.message)))`) as string[]
    const advice = (file: string) =>
      `(Node reads ${join(sub, file)} as CommonJS: name it .mjs, or set "type": "module" in ${join(sub, 'package.json')})`
    expect(messages[0]).toContain(`Cannot use import statement outside a module ${advice('mine.js')}`)
    for (const message of messages.slice(1)) expect(message).toContain(`Unexpected token 'export' ${advice('loss.js')}`)
  })
  test("a user's file that refuses its arguments", () => {
    expect(
      inNode(`
        const error = await loadEnvironment('./shout.ts', { cuont: 7 }, { base }).catch((error) => error)
        console.log(JSON.stringify([error.name, error.message]))`),
    ).toEqual(['UserError', 'environment shout: cuont is not one of its arguments (did you mean count?).'])
  })
  test('an npm package, found from the folder of the config', async () => {
    expect((await loadEnvironment('env-of-a-package', { id: 'from npm' }, { base: folder })).id).toBe('from npm')
  })
})

describe('refused in one sentence', () => {
  test('ids that lead nowhere', async () => {
    expect(await refusal('./none.ts')).toBe(
      'environment ./none.ts: there is no file ./none.ts. Relative paths start from ..'.replace('file ./', `file .${sep}`),
    )
    expect(await refusal('reverse-txt')).toContain(
      'environment reverse-txt: not found; did you mean reverse-text? Bundled: alphabet-sort, arithmetic, ',
    )
    // An id of the Environments Hub, with its owner.
    expect(await refusal('primeintellect/wordle')).toContain('not found; did you mean wordle? Bundled:')
    expect(await refusal('primeintellect/gsm8k')).toContain('not found. Bundled:')
  })
  test('modules that fail or are none', async () => {
    expect(await refusal('./throws.ts')).toMatch(
      /^environment \.\/throws\.ts loadEnvironment threw: no data here \(throws\.ts:\d+:\d+\)$/u,
    )
    expect(await refusal('./syntax.js')).toMatch(/^environment \.\/syntax\.js failed to load: /u)
    expect(await refusal('./nothing.js')).toContain('has no default export that is a function')
    expect(await refusal('./partial.js')).toContain('what loadEnvironment returned has no dataset')
    expect(await refusal('./rows.js')).toContain('has a row that is not { exampleId, prompt: messages, answer, info }')
  })
  test('what the first file in TypeScript gets wrong is said with what to do', () => {
    const told = (name: string, body: string) => {
      writeFileSync(join(folder, name), body)
      const message = inNode(
        `console.log(JSON.stringify(await loadEnvironment('./${name}', {}, { base }).catch((error) => error.message)))`,
      )
      return String(message).replaceAll(folder, '.')
    }
    expect(
      told('type.ts', "import { Rubric, Message } from 'dawn-rl/environments'\nexport default (m: Message) => new Rubric({})"),
    ).toBe(
      "environment ./type.ts failed to load: The requested module 'dawn-rl/environments' does not provide an export named 'Message' (type.ts:1). If Message is a type, write 'type Message' in the import",
    )
    expect(told('ending.ts', "import env from './shout'\nexport default env")).toMatch(/ Write its ending: shout\.ts$/)
    expect(told('never.ts', 'export default () => new Promise(() => {})')).toBe(
      'environment ./never.ts never loads: it awaits a promise that never settles.',
    )
    expect(told('top.ts', 'await new Promise(() => {})\nexport default 1')).toContain('./top.ts never loads')
  })
  test('arguments: unknown keys, wrong types, limits, all at once', async () => {
    expect(await refusal('arithmetic', { maxx: 5, min: 'a', train_size: 0 })).toMatchInlineSnapshot(
      `"environment arithmetic: min is "a": expected number; train_size is 0: Too small: expected number to be >=1; maxx is not one of its arguments (did you mean max?)."`,
    )
    expect(await refusal('reverse-text', { zzzzzzzzz: 1 })).toContain(
      'zzzzzzzzz is not one of its arguments (min_length, max_length, ',
    )
    expect(() => parseArgs('e', { a: z.string() }, {})).toThrow('environment e: a is missing: expected string.')
  })
})

test('an environment in Python is refused on Windows, before anything is started', async () => {
  const here = Object.getOwnPropertyDescriptor(process, 'platform')!
  Object.defineProperty(process, 'platform', { ...here, value: 'win32' })
  try {
    await expect(loadEnvironment('./my_env.py', {}, { base: folder })).rejects.toThrow('such environments need Linux or macOS')
  } finally {
    Object.defineProperty(process, 'platform', here)
  }
})
