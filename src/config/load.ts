/** Turns the words of the command line into a resolved config, or into a single UserError that lists every mistake with its place. */
import { join } from 'node:path'
import type * as z from 'zod'
import { AT, CLI } from '../common/commands.ts'
import { UserError } from '../common/errors.ts'
import { counted } from '../monitor/format.ts'
import { spareGroups } from './algorithm-schema.ts'
import { type Fork, overrideSources, readWords, type Resume, type TraceWish, type Words } from './argv.ts'
import { type Check, rlChecks, rlNotices, sftChecks, sftNotices, type Written } from './checks.ts'
import {
  dotted,
  isSet,
  isTable,
  mergeSources,
  type Path,
  placeOf,
  readSource,
  removeAt,
  type Source,
  sourceOf,
  type Table,
  valueAt,
} from './compose.ts'
import { describeSchema } from './describe.ts'
import { evalChecks, type EvalFile, evalNotices, evalSchema, resolveEval } from './eval-schema.ts'
import { backendOf, findForeign, judge } from './foreign.ts'
import { isDefault, schemaProblems, sentence, show } from './problems.ts'
import { resolveRun, resolveSft } from './resolve.ts'
import { type RunConfig, rlSchema } from './schema.ts'
import { leafPaths, nodeAt, schemaTree } from './schema-tree.ts'
import { type SftConfig, sftSchema } from './sft-schema.ts'
import { pathKey } from './toml-lines.ts'

export type { Fork, Resume, TraceWish } from './argv.ts'

/** A config that is ready to run. */
export interface Loaded<Config> {
  config: Config
  /** One line per notice: keys that are ignored or have no effect, and remarks on others. */
  notices: string[]
  /** "trainer.args.seed = 7" for every key that does not have its default. */
  changed: string[]
  /** Where the value at a path ("a.toml:7:1"), or its nearest table, was written. For mistakes found after loading. */
  at: (path: Path) => string
  /** True if `micro_batch_tokens` is "auto". The config then has the largest possible number, which the command replaces (sizeMicroBatch). */
  autoMicroBatch: boolean
  dryRun: boolean
  resume?: Resume
  fork?: Fork
  trace?: TraceWish
}

/** A kind of config: its schema and what belongs to it. */
interface Dialect<Parsed, Config> {
  verb: string
  schema: z.ZodType<Parsed>
  resolve: (parsed: Parsed) => Config
  checks: Check<Config>[]
  notices: (config: Config, written: Written) => string[]
  /** Placeholders for required keys, so that the other keys can be checked even if these are missing or wrong. */
  example: Table
}

const rl: Dialect<z.output<typeof rlSchema>, RunConfig> = {
  verb: 'train', schema: rlSchema, resolve: resolveRun, checks: rlChecks, notices: rlNotices, example: { model: { name: 'x' }, env: [{ id: 'x' }] },
} // prettier-ignore
const sft: Dialect<z.output<typeof sftSchema>, SftConfig> = {
  verb: 'sft', schema: sftSchema, resolve: resolveSft, checks: sftChecks, notices: sftNotices, example: { model: {}, data: {} },
} // prettier-ignore
const evals: Dialect<z.output<typeof evalSchema>, EvalFile> = {
  verb: 'eval', schema: evalSchema, resolve: resolveEval, checks: evalChecks, notices: evalNotices, example: { eval: [{ env_id: 'x' }] },
} // prettier-ignore

/**
 * Reads an RL config. `argv`: `@ a.toml [@ b.toml ...] [--dotted.key value ...] [--dry-run] [--resume [latest | step N | folder]] [--fork
 * folder[@step]] [--trace ...] [--help]`. With --help it reads no files and returns the help text. Throws a single UserError with all mistakes.
 */
export const loadConfig = (argv: readonly string[]): Loaded<RunConfig> | { help: string } => load(argv, rl)

/** Does the same for `sft`. */
export const loadSftConfig = (argv: readonly string[]): Loaded<SftConfig> | { help: string } => load(argv, sft)

/** Parses an RL config from TOML text. `label` stands for the file name in messages. Throws UserError as loadConfig does. */
export const parseConfig = (text: string, label = 'config.toml'): Loaded<RunConfig> =>
  finish(rl, [sourceOf(text, label)], label, [])

/** Parses an SFT config from TOML text. */
export const parseSftConfig = (text: string, label = 'config.toml'): Loaded<SftConfig> =>
  finish(sft, [sourceOf(text, label)], label, [])

/** Parses one of verifiers' eval configs from TOML text. */
export const parseEvalConfig = (text: string, label: string): Loaded<EvalFile> =>
  finish(evals, [sourceOf(text, label)], label, [])

function load<Parsed, Config>(argv: readonly string[], dialect: Dialect<Parsed, Config>): Loaded<Config> | { help: string } {
  const words = readWords(argv)
  if (words.help) return { help: describeSchema(dialect.verb) }
  const problems = [...words.problems]
  const sources: Source[] = []
  // Without a config file, --resume and --fork use the config.toml of the run.
  const own = words.files.length > 0 ? undefined : ownConfig(words)
  const files = own ? [own] : words.files
  if (words.resume && words.fork) problems.push('--resume continues a run, --fork starts a new one: use only one of them.')
  for (const file of files) {
    try {
      sources.push(own && words.fork ? withoutName(readSource(file)) : readSource(file))
    } catch (error) {
      if (!(error instanceof UserError)) throw error
      problems.push(error.message)
    }
  }
  if (!files.length && !problems.length) {
    throw new UserError(
      `No config file. Write it after @, as in \`${CLI} ${dialect.verb} ${AT} configs/${dialect.verb === 'sft' ? 'tiny-sft' : 'quickstart'}.toml\`; --help lists the keys.`,
    )
  }
  const overrides = overrideSources(words.overrides, sources, schemaTree(dialect.schema))
  problems.push(...overrides.problems)
  const named =
    words.resume?.kind === 'dir' ||
    [...sources, ...overrides.sources].some((source) => isSet([source], ['trainer', 'args', 'run_name']))
  if (words.resume && !named)
    problems.push(
      '--resume: set trainer.args.run_name to the name of the run to continue, or give its folder: --resume outputs/<run_name>.',
    )
  // If a file is missing or was named without its @, only that is reported, because its keys are unknown.
  if (sources.length < files.length || (files.length === 0 && words.problems.length > 0)) throw mistakes(problems)
  const loaded = finish(dialect, [...sources, ...overrides.sources], files[0] ?? 'command line', problems)
  const { dryRun, resume, fork, trace } = words
  return { ...loaded, dryRun, ...(resume && { resume }), ...(fork && { fork }), ...(trace && { trace }) }
}

/** The config.toml of the run that --resume or --fork names. */
function ownConfig({ resume, fork }: Words): string | undefined {
  const dir = resume?.kind === 'dir' ? resume.dir : fork?.dir
  return dir === undefined ? undefined : join(dir, 'config.toml')
}

/** Removes the run's name, as a fork is a new run. */
function withoutName(source: Source): Source {
  removeAt(source.table, ['trainer', 'args', 'run_name'])
  source.places.delete(pathKey(['trainer', 'args', 'run_name']))
  return source
}

/** Validates and resolves merged sources. @param place what messages name for a value that was not written anywhere */
function finish<Parsed, Config>(
  dialect: Dialect<Parsed, Config>,
  sources: Source[],
  place: string,
  problems: string[],
): Loaded<Config> {
  const tree = schemaTree(dialect.schema)
  const raw = mergeSources(sources)
  const at = (path: Path) => placeOf(sources, path)?.place ?? place
  // In a config for the other command nearly every key would be reported: say only this.
  const [own, foreign, verb] = dialect.verb === 'sft' ? ['data', 'env', 'train'] : ['env', 'data', 'sft']
  if (raw[foreign] !== undefined && raw[own] === undefined)
    throw mistakes([
      ...problems,
      `${at([foreign])}: this config has [${foreign}] and no [${own}], so it is for \`${CLI} ${verb} ${AT} FILE\`.`,
    ])
  const notices = dropIgnored(raw, at)

  const wrong = new Set<string>()
  let parsed = dialect.schema.safeParse(raw)
  if (!parsed.success) {
    for (const problem of schemaProblems(parsed.error.issues, raw, tree)) {
      problems.push(sentence(problem, at(problem.path), raw))
      wrong.add(dotted(withoutIndices(problem.path)))
    }
    parsed = dialect.schema.safeParse(mended(raw, parsed.error.issues, dialect.example))
  }
  if (!parsed.success) throw mistakes(problems)

  const config = dialect.resolve(parsed.data)
  const written: Written = {
    isSet: (key) => isSet(sources, key.split('.')),
    value: (key) => valueAt(raw, key.split('.')),
    isChanged: (key) => isSet(sources, key.split('.')) && !isDefault(valueAt(raw, key.split('.')), nodeAt(tree, key.split('.'))),
  }
  for (const check of dialect.checks) {
    if (check.keys.some((key) => [...wrong].some((bad) => bad === key || bad.startsWith(`${key}.`) || key.startsWith(`${bad}.`))))
      continue
    for (const found of [check.find(config, written)].flat()) {
      if (found === undefined) continue
      const { key, text } =
        typeof found === 'string' ? { key: check.keys.find((one) => written.isSet(one)) ?? check.keys[0], text: found } : found
      problems.push(`${at(key.split('.'))}: ${text}`)
    }
  }
  if (problems.length) throw mistakes(problems)
  notices.push(...dialect.notices(config, written))
  const autoMicroBatch = valueAt(raw, ['trainer', 'args', 'micro_batch_tokens']) === 'auto'
  return { config, notices, changed: changedKeys(raw, tree), at, autoMicroBatch, dryRun: false }
}

/** Makes one error of all mistakes, sorted by file and line. */
function mistakes(problems: string[]): UserError {
  const all = Array.from(new Set(problems)).toSorted((a, b) => a.localeCompare(b, 'en', { numeric: true }))
  return new UserError(
    all.length === 1 ? all[0] : `${all.length} mistakes in the config:\n${all.map((text) => `  ${text}`).join('\n')}`,
  )
}

const withoutIndices = (path: Path) => path.filter((part) => !/^\d+$/.test(String(part)))

/** Removes keys of other trainers that change nothing from `raw`. Returns one line for each. */
function dropIgnored(raw: Table, at: (path: Path) => string): string[] {
  const notices: string[] = []
  for (const path of [[], ['model'], ['inference'], ['trainer'], ['trainer', 'args'], ['trainer', 'ckpt']]) {
    const table = path.length ? valueAt(raw, path) : raw
    if (!isTable(table)) continue
    for (const [key, value] of Object.entries(table)) {
      const entry = findForeign(path.join('.'), key, backendOf(raw))
      const verdict = entry && judge(entry, value)
      if (verdict?.verdict !== 'ignored') continue
      delete table[key]
      // An empty table, such as `--inference.args {}`, asks for nothing.
      if (isTable(value) && Object.keys(value).length === 0) continue
      const names = isTable(value) && key === 'args' ? ` (${Object.keys(value).join(', ')})` : ''
      notices.push(`${at([...path, key])}: ${[...path, key].join('.')}${names} ${verdict.say}`)
    }
  }
  return notices
}

/** A copy of `raw` without what the schema refused, and with placeholders for required keys. */
function mended(raw: Table, issues: readonly z.core.$ZodIssue[], example: Table): Table {
  const copy = structuredClone(raw)
  // Last elements first, so that removing a list element does not shift the paths that remain to be removed.
  const paths = issues.flatMap((issue) =>
    issue.code === 'unrecognized_keys' ? issue.keys.map((key) => [...issue.path, key] as Path) : [issue.path as Path],
  )
  const later = (a: Path, b: Path) => b.join('.').localeCompare(a.join('.'), 'en', { numeric: true })
  for (const path of paths.toSorted(later)) if (path.length) removeAt(copy, path)
  for (const [key, value] of Object.entries(example)) {
    const own = copy[key]
    if (Array.isArray(value))
      copy[key] = Array.isArray(own) && own.length ? own.map((item) => ({ ...(value[0] as Table), ...(item as Table) })) : value
    else copy[key] = { ...(value as Table), ...(isTable(own) ? own : {}) }
  }
  return copy
}

/** The keys that do not have their default. */
function changedKeys(raw: Table, tree: ReturnType<typeof schemaTree>): string[] {
  const lines: string[] = []
  for (const { path, node } of leafPaths(tree)) {
    const inList =
      path[0] === 'env' && Array.isArray(raw.env) ? raw.env.map((_, i) => ['env', String(i), ...path.slice(1)]) : [path]
    for (const full of inList) {
      const value = valueAt(raw, full)
      if (value !== undefined && !isDefault(value, node)) lines.push(`${dotted(full, raw)} = ${show(value)}`)
    }
  }
  return lines
}

/** The batch arithmetic of a config in one line: "4 tasks x 8 rollouts = 32 rollouts a step, 12 steps". */
export function batchLine({ trainer: { args } }: RunConfig): string {
  const tasks = args.batch_size / args.rollouts_per_example
  const most = args.batch_size + spareGroups(tasks, args.oversampling_factor) * args.rollouts_per_example
  const spare = most > args.batch_size ? ` (up to ${most} if some are replaced)` : ''
  return `${counted(tasks, 'task')} x ${args.rollouts_per_example} rollouts = ${args.batch_size} rollouts a step${spare}, ${counted(args.max_steps, 'step')}; up to ${args.max_prompt_len} + ${args.max_tokens} tokens each`
}
