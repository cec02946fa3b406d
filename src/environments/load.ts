/**
 * Finds an environment by its id and loads it. An id is a bundled environment (a file in `environments/`), a file of the user's, or an npm package.
 * All three are modules whose default export is `loadEnvironment(args)`, and which import 'dawn-rl/environments'. A resolve hook maps that name to
 * this copy of the code, so that a file in any folder needs no path to it and no second copy is loaded.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { registerHooks } from 'node:module'
import { isAbsolute, join, resolve } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { z } from 'zod'
import { SCRIPTS } from '../common/commands.ts'
import { messageOf, messageOfImport, nearest, placeInCode, UserError } from '../common/errors.ts'
import { loaded } from '../common/loading.ts'
import { notAmong } from './known-options.ts'
import { pythonKnows } from './python/bridge.ts'
import type { PythonOptions } from './python/environment.ts'
import type { Environment, Row } from './types.ts'

export interface LoadOptions extends PythonOptions {
  /** Folder that relative paths start from (the config file's), and in which packages are looked up. Default: the working directory. */
  base?: string
}

// In a checkout, this file and the bundled environments are .ts. In the npm package both are compiled to .js.
const ending = import.meta.url.endsWith('.ts') ? '.ts' : '.js'
const bundledFolder = fileURLToPath(new URL('../../environments/', import.meta.url))

/** Ids of the bundled environments: the files in `environments/`. */
export function bundledEnvironments(): string[] {
  const files = existsSync(bundledFolder) ? readdirSync(bundledFolder) : []
  return files
    .filter((file) => file.endsWith(ending) && !file.endsWith('.d.ts'))
    .map((file) => file.slice(0, -ending.length))
    .toSorted()
}

/** Returns the URL of the module behind an id. Throws UserError if there is none. */
export function resolveEnvironment(id: string, options: LoadOptions = {}): string {
  const base = resolve(options.base ?? '.')
  if (/^\.{1,2}[/\\]/u.test(id) || isAbsolute(id) || /\.[cm]?[jt]s$/u.test(id)) {
    const file = resolve(base, id)
    if (!existsSync(file)) throw new UserError(`environment ${id}: there is no file ${file}. Relative paths start from ${base}.`)
    return pathToFileURL(file).href
  }
  const bundled = bundledEnvironments()
  if (bundled.includes(id)) return pathToFileURL(join(bundledFolder, id + ending)).href
  try {
    return import.meta.resolve(id) // installed next to dawn-rl
  } catch {
    // or next to the config: below
  }
  try {
    return resolvedFrom(base, id)
  } catch {
    // Ids on the Environments Hub are prefixed with their owner.
    const near = nearest(id, bundled) ?? bundled.find((name) => id.endsWith(`/${name}`))
    throw new UserError(
      `environment ${id}: not found${near ? `; did you mean ${near}?` : '.'} Bundled: ${bundled.join(', ')}. Otherwise give a path (./my_env.ts), an installed npm package, or, after 'bash ${SCRIPTS}/setup-verifiers.sh', an environment in Python.`,
    )
  }
}

/** Resolves a name as an `import` in a file of `folder` would. `require.resolve` does not find packages that are ES modules only. */
function resolvedFrom(folder: string, id: string): string {
  const parentURL = pathToFileURL(join(folder, 'package.json')).href
  const hook = registerHooks({ resolve: (specifier, context, next) => next(specifier, { ...context, parentURL }) })
  try {
    return import.meta.resolve(id)
  } finally {
    hook.deregister()
  }
}

/** Whether an id is a Python environment. The config decides if it says so, else the .py extension, else whether only Python knows the name. */
function isPythons(id: string, { python, base = '.' }: LoadOptions): boolean {
  if (python !== undefined) return python !== false
  if (id.endsWith('.py')) return true
  try {
    resolveEnvironment(id, { base })
    return false
  } catch {
    return pythonKnows(id, base)
  }
}

/**
 * Loads an environment and creates it with `args`. Throws UserError for an unknown id, a module that throws or has the wrong shape, and arguments
 * that the environment refuses.
 */
export async function loadEnvironment(
  id: string,
  args: Record<string, unknown> = {},
  options: LoadOptions = {},
): Promise<Environment> {
  if (isPythons(id, options)) {
    const { loadPythonEnvironment } = await import('./python/environment.ts')
    return await loadPythonEnvironment(id, args, options)
  }
  if (options.kwargs !== undefined || options.workers !== undefined)
    throw new UserError(
      `environment ${id}: extra_env_kwargs and num_workers apply only to environments in Python, and this is not one.`,
    )
  const url = resolveEnvironment(id, options)
  hookResolve()
  const module = await attempt(id, fileURLToPath(url), 'failed to load', () => import(url) as Promise<Record<string, unknown>>)
  const make = module.default ?? module.loadEnvironment
  if (typeof make !== 'function') {
    throw new UserError(
      `environment ${id}: ${url} has no default export that is a function. Write "export default function loadEnvironment(args) { ... }".`,
    )
  }
  const made: unknown = await attempt(id, fileURLToPath(url), 'loadEnvironment threw', () =>
    (make as (args: Record<string, unknown>) => unknown)(args),
  )
  return checked(id, made)
}

async function attempt<T>(id: string, path: string, what: string, work: () => T | Promise<T>): Promise<T> {
  try {
    return await loaded(`environment ${id}`, work)
  } catch (error) {
    if (error instanceof UserError) throw error
    const place = placeInCode(error)
    const message = place ? `${messageOf(error)} (${place})` : messageOfImport(error, path)
    const python =
      error instanceof SyntaxError && looksPython(path) ? '. It looks like Python: give it a name that ends in .py' : ''
    throw new UserError(`environment ${id} ${what}: ${message}${python}`, { cause: error })
  }
}

/** Whether a file that is no JavaScript has lines of Python, which neither JavaScript nor TypeScript can have. */
function looksPython(path: string): boolean {
  const text = readFileSync(path, 'utf8')
  return /^(?:from [\w.]+ import |(?:async )?def \w+\()/mu.test(text) && !/^export /mu.test(text)
}

function checked(id: string, made: unknown): Environment {
  const env = made as Partial<Environment> | null | undefined
  const wrong = (what: string) =>
    new UserError(`environment ${id}: what loadEnvironment returned has ${what}. See docs/environments.md.`)
  if (env === null || typeof env !== 'object') throw wrong('the wrong type: an environment object is expected')
  if (typeof env.id !== 'string' || env.id === '') throw wrong('no id')
  if (!Array.isArray(env.dataset) || env.dataset.length === 0) throw wrong('no dataset: an array of rows with at least one')
  if (!Array.isArray(env.evalDataset)) throw wrong('no evalDataset: an array of rows, empty for none')
  // Answers are grouped by exampleId: rows without one would count as one task.
  const isRow = (row: Partial<Row> | undefined) => Array.isArray(row?.prompt) && Number.isInteger(row.exampleId) && !!row.info
  if (![...env.dataset, ...env.evalDataset].every(isRow))
    throw wrong(
      'a row that is not { exampleId, prompt: messages, answer, info }: loadRows makes such rows from questions or prompts',
    )
  if (typeof env.rubric?.score !== 'function') throw wrong('no rubric')
  if (typeof env.rollout !== 'function') throw wrong('no rollout function')
  return env as Environment
}

/** A mistake in an environment's arguments. `path` leads to the first wrong one. */
export class ArgsError extends UserError {
  readonly path: string[]
  constructor(message: string, path: string[]) {
    super(message)
    this.path = path
  }
}

let hooked = false

/**
 * Maps 'dawn-rl/environments' to this copy of the code. Also loads the user's .ts files as ES modules if the package.json of their folder says
 * "commonjs", which is what `npm init` writes. This applies to all of the user's files: losses, advantages and filters too.
 */
export function hookResolve(): void {
  if (hooked) return
  hooked = true
  const own = new URL(`./index${ending}`, import.meta.url).href
  registerHooks({
    resolve: (specifier, context, next) => {
      if (specifier === 'dawn-rl/environments') return { url: own, shortCircuit: true }
      const resolved = next(specifier, context)
      return resolved.format === 'commonjs-typescript' && resolved.url.endsWith('.ts')
        ? { ...resolved, format: 'module-typescript' }
        : resolved
    },
  })
}

/**
 * Checks an environment's arguments against a zod shape and fills in defaults.
 * Throws one ArgsError that names the environment and every wrong key.
 *
 *     const { max } = parseArgs('arithmetic', { max: z.int().min(1).default(20) }, args)
 */
export function parseArgs<Shape extends z.ZodRawShape>(id: string, shape: Shape, args: unknown): z.infer<z.ZodObject<Shape>> {
  const result = z.strictObject(shape).safeParse(args ?? {})
  if (result.success) return result.data
  const known = Object.keys(shape)
  const wrong = result.error.issues.flatMap((issue) => {
    if (issue.code === 'unrecognized_keys') {
      return issue.keys.map((key) => notAmong(key, 'arguments', known))
    }
    const key = issue.path.join('.')
    const given = issue.path.reduce<unknown>((value, step) => (value as Record<PropertyKey, unknown> | undefined)?.[step], args)
    const message = issue.message.replace(/^Invalid (?:input|option): /u, '').replace(/, received .*$/u, '')
    return `${key || 'args'} is ${JSON.stringify(given) ?? 'missing'}: ${message}`
  })
  const [first] = result.error.issues
  const path = [...first.path, ...(first.code === 'unrecognized_keys' ? first.keys.slice(0, 1) : [])].map(String)
  throw new ArgsError(`environment ${id}: ${wrong.join('; ')}.`, path)
}
