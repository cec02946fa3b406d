/** Rules of the architecture that no compiler checks: which room may import which, how long a file may be, and syntax that the runtime cannot strip. */
import { globSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'

const root = fileURLToPath(new URL('..', import.meta.url))
const files = (pattern: string) => globSync(pattern, { cwd: root }).toSorted()
const text = (file: string) => readFileSync(join(root, file), 'utf8')
const lines = (file: string) => text(file).trimEnd().split('\n').length

/** Imports go only down this list (docs/house.md, "Rooms"). */
const rooms = [
  'cli',
  'bench',
  'config',
  'orchestrator',
  'environments',
  'trainer',
  'inference',
  'monitor',
  'model',
  'autograd',
  'kernels',
  'gpu',
  'common',
]

/** For each room, rooms further down the list that it must not import either. */
const strangers: Record<string, string[]> = {
  cli: ['kernels'],
  bench: ['config', 'orchestrator', 'environments', 'monitor'],
  config: ['gpu', 'kernels', 'autograd', 'trainer', 'inference'],
  orchestrator: ['gpu', 'kernels', 'autograd'],
  environments: ['trainer', 'inference', 'model', 'autograd', 'kernels', 'gpu'],
  trainer: ['inference'],
  monitor: ['model', 'autograd', 'kernels', 'gpu'],
}

/** Libraries that only the named files may import, so that they can be replaced there. */
const doors: Record<string, string | string[]> = {
  '@huggingface/tokenizers': 'src/model/tokenizer/tokenizer.ts',
  '@huggingface/jinja': 'src/model/chat/library.ts',
  '@huggingface/hub': ['src/environments/datasets-hub.ts', 'src/model/files/hub.ts'], // datasets, models: the two rooms do not import each other
  pino: 'src/monitor/logger.ts',
}

/** The modules that a source file imports, including type imports and dynamic imports (`import()`). */
function importsOf(source: string): string[] {
  const pattern =
    /(?:^|\n)\s*(?:import|export)\b[^'"`;()]*?\bfrom\s*'([^']+)'|\bimport\s*\(\s*'([^']+)'\s*\)|(?:^|\n)import\s+'([^']+)'/g
  return [...source.matchAll(pattern)].map(([, a, b, c]) => a ?? b ?? c)
}

const modules = files('src/**/*.ts').map((file) => ({ file, room: file.split('/')[1], imports: importsOf(text(file)) }))

describe('imports', () => {
  test('every folder of src is a room of the list', () => {
    expect([...new Set(modules.map((m) => m.room))].filter((room) => !rooms.includes(room))).toEqual([])
    expect(modules.length).toBeGreaterThan(100)
  })

  test('the reader of imports sees all kinds of them', () => {
    const source = `import { a,\n  b } from '../a.ts'\nimport type { C } from './c.ts'\nexport * from './d.ts'\nimport './e.ts'\nconst f = await import('./f.ts')\n`
    expect(importsOf(source)).toEqual(['../a.ts', './c.ts', './d.ts', './e.ts', './f.ts'])
  })

  test('go down the list of rooms', () => {
    const wrong: string[] = []
    for (const { file, room, imports } of modules) {
      for (const name of imports.filter((i) => i.startsWith('.'))) {
        const target = relative(join(root, 'src'), join(root, dirname(file), name)).split('/')[0]
        if (target === room) continue
        const isBelow = rooms.indexOf(target) > rooms.indexOf(room)
        if (!isBelow || strangers[room]?.includes(target)) wrong.push(`${file} imports ${name}`)
      }
    }
    expect(wrong).toEqual([])
  })

  test('name files that are there, with their ending', () => {
    const there = new Set([...files('src/**/*.ts'), ...files('environments/*.ts')])
    const wrong = modules.flatMap(({ file, imports }) =>
      imports.filter((i) => i.startsWith('.') && !there.has(join(dirname(file), i))).map((i) => `${file}: ${i}`),
    )
    expect(wrong).toEqual([])
  })

  test('of some libraries stand in one file', () => {
    for (const [library, door] of Object.entries(doors)) {
      const users = modules.filter((m) => m.imports.includes(library)).map((m) => m.file)
      expect(users, library).toEqual([door].flat())
    }
  })

  test('of packages are of those that package.json lists, as the ones of the viewer are', () => {
    const { dependencies, optionalDependencies } = JSON.parse(text('package.json')) as Record<string, object>
    const listed = new Set(Object.keys({ ...dependencies, ...optionalDependencies }))
    const vendored = [...text('src/monitor/view/static.ts').matchAll(/module: '([^']+)'/g)].map(([, name]) => name)
    expect(vendored.length).toBeGreaterThan(5)
    const names = [...modules.flatMap((m) => m.imports), ...vendored].filter((name) => !/^(?:\.|node:|dawn-rl\/)/.test(name))
    const packages = names.map((name) => /^(?:@[^/]+\/)?[^/]+/.exec(name)![0])
    expect([...new Set(packages)].filter((name) => !listed.has(name))).toEqual([])
  })

  test('make no circle of files', () => {
    const graph = new Map(modules.map((m) => [m.file, importedValues(text(m.file)).map((i) => join(dirname(m.file), i))]))
    const done = new Set<string>()
    const visit = (file: string, path: string[]): void => {
      if (path.includes(file)) throw new Error(`a circle: ${[...path.slice(path.indexOf(file)), file].join(' -> ')}`)
      if (done.has(file)) return
      for (const next of graph.get(file) ?? []) visit(next, [...path, file])
      done.add(file)
    }
    for (const file of graph.keys()) visit(file, [])
    expect(done.size).toBe(modules.length)
  })

  test('of the bundled environments are those that a user has', () => {
    for (const file of files('environments/*.ts')) {
      const allowed = /^(?:dawn-rl\/environments|node:.+|\.\.\/src\/environments\/index\.ts)$/
      expect(
        importsOf(text(file)).filter((i) => !allowed.test(i)),
        file,
      ).toEqual([])
    }
  })
})

/** Static imports of values. These must not form a cycle. */
function importedValues(source: string): string[] {
  const pattern = /(?:^|\n)(?:import|export)\s+(?!type\b)[^'"`;()]*?\bfrom\s*'(\.[^']+)'/g
  return [...source.matchAll(pattern)].map(([, name]) => name)
}

describe('files', () => {
  test('have at most 400 lines', () => {
    const long = files('{src,environments,bench}/**/*.{ts,wgsl}').filter((file) => lines(file) > 400)
    expect(long).toEqual([])
  })

  test('start with what they are for', () => {
    const silent = files('src/**/*.ts').filter((file) => !/^(?:#!.*\n)?\/\*\*|^import[^;]*?\n\/\*\*/.test(text(file)))
    expect(silent).toEqual([])
  })

  test('hold only syntax that Node strips', () => {
    for (const file of files('{src,environments,bench,test,configs}/**/*.ts')) {
      expect(text(file), file).not.toMatch(/^\s*(?:export )?(?:declare )?(?:const )?enum \w/m)
      expect(text(file), file).not.toMatch(/^\s*(?:export )?(?:namespace|module) \w+ \{/m)
    }
  })

  test('name no folder of one machine', () => {
    const made = files('{src,environments,bench,test,configs,scripts,docs}/**/*.{ts,js,py,sh,md,toml,wgsl}')
    expect(made.filter((file) => /\/(?:home|Users)\/\w+\/|\/work\/(?:main|tmp|shared)/.test(text(file)))).toEqual([])
  })
})

test('what someone reads to change the algorithm has under 1,000 lines together', () => {
  const step = ['src/trainer/trainer.ts', 'src/trainer/gradients.ts']
  // The loop, whatever its files are called, without the tables and adapters around it (docs/house.md names the same files).
  const loop = ['loop', 'orchestrator', 'algorithm', 'types'].map((name) => `src/orchestrator/${name}.ts`)
  const plugins = files('src/{trainer/losses,orchestrator/advantages,orchestrator/filters}/*').filter(
    (file) => !/\/losses\/(?:index|check)\.ts$/.test(file),
  )
  expect(plugins.length).toBeGreaterThan(5)
  expect([...step, ...loop, ...plugins].reduce((sum, file) => sum + lines(file), 0)).toBeLessThan(1000)
})
