/** Help text and docs/config.md, made from the schema alone. */
import type * as z from 'zod'
import { CLI, TRAIN } from '../common/commands.ts'
import { foreignKeys } from './foreign.ts'
import { rlSchema, trainerGroups } from './schema.ts'
import { allowedText, type SchemaNode, schemaTree } from './schema-tree.ts'
import { sftSchema, sftTrainerGroups } from './sft-schema.ts'
import { tomlValue } from './toml-write.ts'

/** A heading and its keys, in the order of the schema. */
interface Section {
  title: string
  note: string
  keys: [string, SchemaNode][]
}

function sections(schema: z.ZodType, groups: Record<string, object>): Section[] {
  const tree = schemaTree(schema)
  const found: Section[] = []
  const visit = (node: SchemaNode, path: string[]) => {
    const table = node.items?.keys ? node.items : node
    const keys = Object.entries(table.keys ?? {})
    const plain = keys.filter(([, child]) => !child.keys && !child.items?.keys)
    const title = path.length ? `[${path.join('.')}]` : ''
    if (path.join('.') === 'trainer.args') {
      for (const [group, fields] of Object.entries(groups))
        found.push({ title: `${title} ${group}`, note: '', keys: Object.keys(fields).map((key) => [key, table.keys![key]]) })
    } else if (plain.length) found.push({ title, note: node.description, keys: plain })
    for (const [key, child] of keys) if (child.keys || child.items?.keys) visit(child, [...path, key])
  }
  visit(tree, [])
  return found
}

const rlSections = () => sections(rlSchema, trainerGroups)
const sftSections = () => sections(sftSchema, sftTrainerGroups)

/** 'integer >= 2, default 16' */
function facts(node: SchemaNode): string {
  const kind = node.type === 'free' ? 'table' : allowedText(node).replace(/^an? /, '')
  if (node.required) return `${kind}, required`
  return node.default === undefined || JSON.stringify(node.default) === '{}'
    ? kind
    : `${kind}; default ${tomlValue(node.default, node)}`
}

function wrap(text: string, width: number, indent: string): string {
  const lines: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line && line.length + 1 + word.length > width) {
      lines.push(line)
      line = word
    } else line = line ? `${line} ${word}` : word
  }
  return [...lines, line].map((l) => indent + l).join('\n')
}

/** The text of `train --help` and `sft --help`: the whole schema, table by table. Lines of at most `width` characters. */
export function describeSchema(verb: string, width = 110): string {
  const usage = verb === 'sft' ? `${CLI} sft` : TRAIN
  const example = verb === 'sft' ? 'configs/tiny-sft.toml' : 'configs/quickstart.toml'
  const head = [
    `${usage} @ config.toml [@ overlay.toml ...] [--dotted.key value ...] [--dry-run] [--resume [latest | step N | folder]] [--fork folder[@step]] [--trace]`,
    '',
    `  @ file        a TOML file; several compose left to right (try ${example}); where its name ends in .toml, the @ may be left out`,
    '  --key value   overrides one key: --trainer.args.learning_rate 1e-4, or --learning-rate 1e-4 where only one key has that name',
    '  --dry-run     print the resolved config and the memory it needs, and start nothing',
    '  --resume      go on from the newest checkpoint of the run, from step N, or with the run of a folder (then its config will do)',
    '  --fork        begin a new run with the checkpoint of another: its newest, or folder@20, folder@best; the config may differ',
    '  --trace       [5 | 5-6] [FILE.json] [passes]: record what CPU and GPU do in these steps (default: the second and third) for',
    '                ui.perfetto.dev, into trace.json of the run; kernel by kernel, or with less to pay by passes (docs/performance.md)',
  ]
  const body = (verb === 'sft' ? sftSections() : rlSections()).flatMap(({ title, note, keys }) => [
    '',
    note ? `${title}  ${note}` : title,
    ...keys.flatMap(([key, node]) => [
      `  ${wrap(`${key}  (${facts(node)})`, width - 2, '      ').trimStart()}`,
      wrap(node.description, width - 6, '      '),
    ]),
  ])
  return [...head, ...body, ''].join('\n')
}

/** Text for a cell of a Markdown table. */
const escapeCell = (text: string) => text.replaceAll('|', '\\|')

/** docs/config.md, complete. */
export function configReference(): string {
  const table = (all: Section[]) =>
    all.flatMap(({ title, note, keys }) => [
      '', `### ${title}`, ...(note ? ['', note] : []), '', '| key | takes | default | what it does |', '|---|---|---|---|',
      ...keys.map(([key, node]) => {
        const initial = node.required ? 'required' : node.default === undefined ? '' : `\`${tomlValue(node.default, node)}\``
        return `| \`${key}\` | ${escapeCell(node.type === 'free' ? 'a table' : allowedText(node))} | ${escapeCell(initial)} | ${escapeCell(node.description)} |`
      }),
    ]) // prettier-ignore
  const foreign = foreignKeys.map(({ table: place, names, say, verdict, otherwise, backend }) => {
    const key =
      names.map((name) => `\`${place ? `${place}.` : ''}${name}\``).join(', ') + (backend ? ` (backend "${backend}")` : '')
    const more = otherwise ? ` Other values: ${otherwise.say}` : ''
    return `| ${key} | ${verdict} | ${escapeCell(`${say.replace(/\[trainer\.args\]$/, '[trainer.args].')}${more}`)} |`
  })
  return [
    '# Configuration',
    '',
    'Made from the schema in `src/config` by `node src/config/docs.ts`; do not edit by hand.',
    '',
    'A config is one TOML file, or several that compose left to right, then overrides:',
    '',
    '    node train.js @ configs/quickstart.toml [@ overlay.toml ...] [--trainer.args.learning_rate 1e-4] [--dry-run]',
    '',
    'Tables are merged key by key, everything else is replaced (an `[env]` with another `id` replaces the environment with its args). An override is a',
    'dotted key in snake_case or kebab-case; a last part that only one key has may stand alone: `--max-steps 2`. `{}` empties a table: `--inference.args {}`.',
    'Unknown keys, wrong types and keys that contradict each other are all reported at once, with file, line and column; what an environment refuses of its `args` is told when it is loaded, by its id',
    'and the key. `--dry-run` prints the resolved config; each run keeps it as `config.toml`, which is a config again. Paths are relative to the folder that the',
    'command is started in.',
    '',
    '## Reinforcement learning (`node train.js @ file`)',
    ...table(rlSections()),
    '',
    '## Supervised training (`node cli.js sft @ file`)',
    ...table(sftSections()),
    '',
    '## Keys of other trainers',
    '',
    'A config of vf-rl runs with few changes. These keys of vf-rl, prime-rl, TRL and the Hugging Face Trainer are not keys here. *Ignored*: the run goes on and',
    'says so in one line. *Refused*: it would mean something else; the sentence says what to write. Every message starts with the key.',
    'Options that make an algorithm, and those of the same name: [algorithms.md](algorithms.md#from-trl-and-prime-rl).',
    '',
    '| key | verdict | the key ... |',
    '|---|---|---|',
    ...foreign,
    '',
  ].join('\n')
}
