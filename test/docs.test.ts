/** Checks README.md and docs/ against the code: links, paths, keys, options, names, sizes, and the examples, which are run. */
import { execFileSync } from 'node:child_process'
import { existsSync, globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { Command } from 'commander'
import { parse } from 'smol-toml'
import { afterAll, describe, expect, test } from 'vitest'
import { Random } from '../src/common/random.ts'
import type { Rollout } from '../src/common/types.ts'
import { rlSchema } from '../src/config/schema.ts'
import { leafPaths, nodeAt, schemaTree } from '../src/config/schema-tree.ts'
import { sftSchema } from '../src/config/sft-schema.ts'
import { bindingsOf, expandWgsl, paramsOf } from '../src/gpu/wgsl.ts'
import { assignAdvantages } from '../src/orchestrator/algorithm.ts'
import { loadAlgorithm } from '../src/orchestrator/plugins.ts'
import { checkLossGradient, checkLossShape } from '../src/trainer/losses/check.ts'
import { loadLoss } from '../src/trainer/losses/index.ts'
import type { LossInputs } from '../src/trainer/losses/types.ts'
import { seed, seedWords } from './seed.ts'

const root = join(import.meta.dirname, '..')
const pages = ['README.md', ...globSync('docs/*.md', { cwd: root }).toSorted()]
/** The pages that are written by hand. */
const written = pages.filter((page) => !['docs/config.md', 'docs/metrics.md'].includes(page))
const text = (page: string) => readFileSync(join(root, page), 'utf8')
const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-docs-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** The fenced code blocks of a page whose opening fence has this info string. */
function blocks(page: string, kind: string): string[] {
  return [...text(page).matchAll(/^```([^\n]*)\n([\s\S]*?)^```$/gm)].flatMap(([, info, body]) => (info === kind ? [body] : []))
}
const outsideFences = (page: string) => text(page).replace(/^```[\s\S]*?^```$/gm, '')
const inBackticks = (page: string) => [...outsideFences(page).matchAll(/`([^`\n]+)`/g)].map(([, code]) => code)

describe('links', () => {
  test.each(pages)('%s', (page) => {
    for (const [, target] of outsideFences(page).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(target)) continue
      const [file, anchor] = target.split('#')
      const path = file === '' ? page : join(dirname(page), file)
      expect(existsSync(join(root, path)), `${page} links to ${target}`).toBe(true)
      if (anchor) expect(anchors(path), `${page} links to ${target}`).toContain(anchor)
    }
  })
})

/** The anchors that GitHub generates for headings. */
function anchors(page: string): string[] {
  const headings = [...outsideFences(page).matchAll(/^#+ (.+)$/gm)].map(([, heading]) => heading)
  return headings.map((h) =>
    h
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  )
}

describe('paths', () => {
  const places = 'src|test|docs|configs|scripts|environments|bench'
  test.each(written)('%s', (page) => {
    for (const [path] of text(page).matchAll(new RegExp(`(?<![\\w./-])(?:${places})/[\\w./-]+`, 'g'))) {
      const clean = path.replace(/[./]+$/, '')
      // An import from the package, not a path.
      if (text(page).includes(`'dawn-rl/${clean}`)) continue
      expect(existsSync(join(root, clean)), `${page} mentions ${clean}`).toBe(true)
    }
  })
})

const trees = [schemaTree(rlSchema), schemaTree(sftSchema)]
const isKey = (path: string[]) => trees.some((tree) => nodeAt(tree, path) ?? nodeAt(tree, [path[0], '0', ...path.slice(1)]))

describe('keys and options', () => {
  /** Last parts of keys that may stand alone on the command line. */
  const short = new Set(trees.flatMap((tree) => leafPaths(tree).map(({ path }) => path.at(-1)!)))

  test.each(written)('%s: dotted keys', (page) => {
    const pattern = /(?:trainer\.args|inference|model|env|data)\.[a-z][\w.]*\w/g
    for (const code of [...inBackticks(page), ...commandLines(page)]) {
      for (const [key] of code.matchAll(new RegExp(`(?<![\\w./])${pattern.source}`, 'g'))) {
        expect(isKey(key.split('.')), `${page} mentions ${key}`).toBe(true)
      }
    }
  })

  test.each(written)('%s: TOML', (page) => {
    for (const block of blocks(page, 'toml')) {
      const walk = (value: unknown, path: string[]): void => {
        if (path.length > 0) expect(isKey(path), `${page}: ${path.join('.')}`).toBe(true)
        if (typeof value !== 'object' || value === null || Array.isArray(value)) return
        for (const [key, below] of Object.entries(value)) walk(below, [...path, key])
      }
      walk(parse(block), [])
    }
  })

  test.each(written)('%s: options and verbs', async (page) => {
    const options = await verbOptions()
    for (const line of [...commandLines(page), ...inBackticks(page)]) {
      for (const [, verb] of line.matchAll(/(?:node cli\.js|dawn-rl) ([a-z]+)(?=[\s`]|$)/g)) {
        expect(existsSync(join(root, `src/cli/${verb}.ts`)), `${page}: the verb ${verb}`).toBe(true)
      }
      // Commands of other programs have their own options.
      if (/^(?:npm|bash|sudo) |\bvllm serve /.test(line)) continue
      for (const [, name] of line.matchAll(/(?<!\S)--([a-z][\w.-]*)/g)) {
        const known = options.has(`--${name}`) || short.has(name.replaceAll('-', '_')) || isKey(name.split('.'))
        expect(known, `${page}: --${name}`).toBe(true)
      }
    }
  })
})

/** The lines of indented code: commands and output. */
function commandLines(page: string): string[] {
  return [...outsideFences(page).matchAll(/^ {4}(\S.*)$/gm)].map(([, line]) => line)
}

async function verbOptions(): Promise<Set<string>> {
  const found = new Set(['--dry-run', '--resume', '--fork', '--trace', '--help', '--version'])
  for (const verb of ['env', 'eval', 'report', 'view', 'serve', 'score', 'grad', 'merge', 'doctor', 'bench']) {
    const program = new Command()
    const { register } = (await import(`../src/cli/${verb}.ts`)) as { register: (program: Command) => void }
    register(program)
    const [command] = program.commands
    for (const { options } of [command, ...command.commands]) for (const option of options) found.add(option.long!)
  }
  return found
}

const sources = globSync('{src,scripts,bench,test}/**/*.{ts,wgsl,sh}', { cwd: root }).map(text).join('\n')

describe('names of the code', () => {
  test.each(written)('%s', (page) => {
    for (const code of inBackticks(page)) {
      // `name`, `Class.method`, `name(arguments)`: with a capital letter inside, which distinguishes names from words.
      const name = /^((?:[A-Za-z]\w*\.)?[A-Za-z]\w*)(?:\(.*\))?$/.exec(code)?.[1]
      if (!name || !/[a-z][A-Z]|^[A-Z][a-z]+\.|\(/.test(code)) continue
      for (const part of name.split('.')) expect(sources, `${page} mentions ${code}`).toMatch(new RegExp(`\\b${part}\\b`))
    }
  })
  test('variables of the environment', () => {
    for (const page of written) {
      for (const [name] of text(page).matchAll(/\bDAWN_RL_\w+/g))
        expect(sources, page).toMatch(new RegExp(`env\\.${name}\\b|\\b${name}\\b.*env`))
    }
  })
  test('messages quoted in docs/troubleshooting.md', () => {
    for (const code of inBackticks('docs/troubleshooting.md')) {
      if (!/^[A-Za-z_]+[^=/]* [^=/]* [^=/]*$/.test(code) || /^(?:node|bash|sudo|npm) |DAWN_RL/.test(code)) continue
      const said = code.replace(/^warning: /, '')
      for (const part of said
        .split(/\b[NM]\b|\.\.\./)
        .map((p) => p.trim())
        .filter((p) => p.length > 8)) {
        expect(sources.includes(part), `"${part}" of \`${code}\``).toBe(true)
      }
    }
  })
})

test('docs/kernels.md lists every kernel, and no other', () => {
  const files = globSync('src/kernels/**/*.wgsl', { cwd: root }).map((file) => basename(file))
  const page = text('docs/kernels.md')
  for (const file of new Set(files)) expect(page.includes(`\`${file}\``), `a line on ${file}`).toBe(true)
  for (const [, named] of page.matchAll(/`([\w/]+\.wgsl)`/g))
    expect(files.includes(named) || existsSync(join(root, named)), named).toBe(true)
})

test('a file of an example, saved beside package.json, is of the project in which an editor finds dawn-rl/environments', () => {
  const { include } = JSON.parse(text('tsconfig.json')) as { include: string[] }
  expect(include).toContain('*.ts')
})

test('what one reads to change the algorithm is under 1,000 lines', () => {
  const [, list] = /<!-- algorithm -->([\s\S]*?)<!-- \/algorithm -->/.exec(text('docs/house.md'))!
  const files = [...list.matchAll(/`([^`]+)`/g)].map(([, file]) => file)
  expect(files.length).toBeGreaterThan(10)
  expect(files.reduce((sum, file) => sum + text(file).trimEnd().split('\n').length, 0)).toBeLessThan(1000)
})

describe('examples', () => {
  const examples = (kind: string) =>
    written.flatMap((page) => blocks(page, `ts ${kind}`).map((body, i) => [page, i, body] as const))
  const file = (name: string, body: string) => {
    mkdirSync(folder, { recursive: true })
    const path = join(folder, name)
    writeFileSync(path, body.replaceAll("'./configs/", `'${root}/configs/`))
    return path
  }
  /** Checks that the types an example imports exist, as Node only strips such imports. */
  const expectImports = (body: string) => {
    for (const [, names, path] of body.matchAll(/import (?:type )?\{ ([^}]+) \} from '\.\/([^']+)'/g)) {
      for (const name of names.split(', '))
        expect(text(path)).toMatch(new RegExp(`export (?:type|interface|class|function|async function) ${name}\\b`))
    }
  }

  test('there are some of each kind', () => {
    expect(['loss', 'advantage', 'filter', 'environment'].map((kind) => examples(kind).length)).toEqual([8, 4, 2, 2])
  })

  test.each(examples('loss'))('loss of %s (%i)', async (page, i, body) => {
    expectImports(body)
    const loss = await loadLoss(file(`loss-${basename(page)}-${i}.ts`, body), { mask_ratio_low: 0.125, mask_ratio_high: 8 })
    expect(loss.checked).toBe(true)
    checkLossShape(loss, true)
    const random = new Random(seed)
    const sequences = Array.from({ length: 6 }, () => randomSequence(random, 30))
    // The last sequence has ratio 1, so that the loss has a gradient there even if it clips all the others, as the narrow bounds of GSPO may.
    const last = sequences.at(-1)!
    sequences.push({ ...last, inferenceLogprobs: last.logprobs.slice() })
    expect(checkLossGradient(loss, sequences), seedWords).toBe(true)
  })

  /** The algorithm with built-in functions, and one of them from a file. */
  const algorithm = (given: { advantage?: string; filters?: string[] }) =>
    loadAlgorithm({ advantage: 'group_mean', advantage_args: {}, filters: [], filter_args: {}, ...given })

  test.each(examples('advantage'))('advantage of %s (%i)', async (page, i, body) => {
    expectImports(body)
    const loaded = await algorithm({ advantage: file(`advantage-${basename(page)}-${i}.ts`, body) })
    const values = assignAdvantages(groupOf([1, 0.5, 0, 0.5]), loaded).map(({ advantage }) => advantage as number)
    expect(values[0]).toBeGreaterThan(values[1])
    expect(values[1]).toBe(values[3])
    expect(values.reduce((a, b) => a + b)).toBeCloseTo(0)
  })

  test.each(examples('filter'))('filter of %s (%i)', async (page, i, body) => {
    expectImports(body)
    const loaded = await algorithm({ filters: [file(`filter-${basename(page)}-${i}.ts`, body)] })
    const isTrained = (group: Rollout[]) => assignAdvantages(group, loaded).every(({ advantage }) => advantage !== null)
    // The first group has mediocre answers, none of them cut off. The second has perfect answers that were all cut off.
    expect([isTrained(groupOf([0, 0.5])), isTrained(groupOf([1, 1], true))]).toEqual([true, false])
  })

  test.each(examples('environment'))('environment of %s (%i)', (page, i, body) => {
    const path = file(`environment-${basename(page)}-${i}.ts`, body)
    const index = new URL('../src/environments/index.ts', import.meta.url).href
    // In a Node process of its own, as in a run: under vitest our resolve hook is not used.
    const script = `import { loadEnvironment } from ${JSON.stringify(index)}
      const env = await loadEnvironment(${JSON.stringify(path)})
      const { prompt, answer, info } = env.dataset[0]
      const score = (text, isTruncated) => env.rubric.score({ prompt, answer, info, isTruncated, stopCondition: 'eos',
        completion: [{ role: 'assistant', content: text }], completion_tokens: { ids: [], logprobs: [], versions: [] } })
      const scores = [await score('It is ' + answer + '.', false), await score('I do not know', true)]
      console.log(JSON.stringify({ scores, train: env.dataset.length, held: env.evalDataset.length }))`
    const out = execFileSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8', cwd: folder })
    const { scores, train, held } = JSON.parse(out) as { scores: { reward: number }[]; train: number; held: number }
    expect(scores).toMatchObject([{ reward: 1 }, { reward: 0 }])
    expect(train).toBeGreaterThan(100)
    expect(held).toBeGreaterThan(0)
    // It is played as well. A problem gives exit code 2, which makes this throw.
    execFileSync(process.execPath, [join(root, 'cli.js'), 'env', 'check', path], { encoding: 'utf8', cwd: root })
  })

  test('the kernel of docs/kernels.md expands', () => {
    const [body] = blocks('docs/kernels.md', 'wgsl example')
    const source = expandWgsl(file('example.wgsl', body), { PER: 1 })
    expect(bindingsOf(source).map(({ name, kind }) => [name, kind])).toEqual([
      ['x', 'read'],
      ['y', 'read_write'],
    ])
    expect(paramsOf(source, 'example')).toEqual([
      { name: 'count', type: 'u32' },
      { name: 'scale', type: 'f32' },
    ])
    expect(source).toContain('fn main(')
  })
})

/** A sequence with ratios near 1 and far from it, and advantages of a single sign, as a group mean gives them. */
function randomSequence(random: Random, length: number): LossInputs {
  const logprobs = Float32Array.from({ length }, () => -3 * random.next())
  const advantage = random.normal()
  return {
    logprobs,
    frozenLogprobs: logprobs,
    inferenceLogprobs: logprobs.map((l) => l + 0.6 * random.normal()),
    refLogprobs: logprobs.map((l) => l + 0.6 * random.normal()),
    advantages: new Float32Array(length).fill(advantage),
    lossMask: Uint8Array.from({ length }, (_, t) => Number(t > 5)),
    entropy: new Float32Array(length).fill(1),
    lossTokenCount: 200,
  }
}

function groupOf(rewards: number[], isTruncated = false): Rollout[] {
  return rewards.map((reward, index) => ({
    exampleId: 0, env: 'test', group: '1.0', index, prompt: [{ role: 'user', content: 'question' }], completion: [{ role: 'assistant', content: 'answer' }],
    answer: 'answer', info: {}, reward, metrics: {}, promptIds: [1, 2], completion_tokens: { ids: [3, 4], logprobs: [-1, -1], versions: [0, 0] },
    isTruncated, stopCondition: isTruncated ? 'max_tokens' : 'eos', error: null, seed: 0, timing: { generation_ms: 1, scoring_ms: 1, total_ms: 2 },
  })) // prettier-ignore
}
