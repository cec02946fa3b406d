/** Generates the help text and docs/config.md from the schema. */
import type * as z from 'zod'
import { CLI, TRAIN } from '../common/commands.ts'
import { foreignKeys } from './foreign.ts'
import { rlSchema, trainerGroups } from './schema.ts'
import { allowedText, type SchemaNode, schemaTree } from './schema-tree.ts'
import { sftSchema, sftTrainerGroups } from './sft-schema.ts'
import { tomlValue } from './toml-write.ts'

/** A heading and its keys, in the schema's order. */
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

/** Describes a key's type and default: 'integer >= 2, default 16'. */
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

/** The text of `train --help` and `sft --help`: the whole schema, table by table. Lines have at most `width` characters. */
export function describeSchema(verb: string, width = 110): string {
  const usage = verb === 'sft' ? `${CLI} sft` : TRAIN
  const example = verb === 'sft' ? 'configs/tiny-sft.toml' : 'configs/quickstart.toml'
  const head = [
    `${usage} @ config.toml [@ overlay.toml ...] [--dotted.key value ...] [--dry-run] [--resume [latest | step N | folder]] [--fork folder[@step]] [--trace]`,
    '',
    `  @ file        a TOML file (try ${example}); several are merged from left to right; before a name that ends in .toml, the @ may be left out`,
    '  --key value   overrides one key: --trainer.args.learning_rate 1e-4, or --learning-rate 1e-4 if only one key has that name',
    '  --dry-run     print the resolved config and the memory it needs, and start nothing',
    '  --resume      continue the run from its newest checkpoint or from step N, or continue the run in a folder (no other config is needed)',
    '  --fork        start a new run from a checkpoint of another run: its newest, folder@20 or folder@best; the config may differ',
    '  --trace       [5 | 5-6] [FILE.json] [passes]: record what CPU and GPU do in these steps (default: the second and third) for',
    '                ui.perfetto.dev, in trace.json of the run; kernel by kernel, or with less overhead by passes (docs/performance.md)',
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

/** Escapes text for a cell of a Markdown table. */
const escapeCell = (text: string) => text.replaceAll('|', '\\|')

/** The complete text of docs/config.md. */
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
    'A config is one TOML file, or several that are merged from left to right, followed by overrides:',
    '',
    '    node train.js @ configs/quickstart.toml [@ overlay.toml ...] [--trainer.args.learning_rate 1e-4] [--dry-run]',
    '',
    '- Tables are merged key by key; any other value replaces the earlier one. An `[env]` with another `id` replaces the environment and its `args`.',
    '  So does `--env.id`, before or after other overrides of the environment, but it keeps the `weight`.',
    '- An override is a dotted key in snake_case or kebab-case. Its last part is enough if only one key has it: `--max-steps 2`. `{}` empties a table:',
    '  `--inference.args {}`.',
    '- Unknown keys, wrong types and contradictory keys are all reported at once, with file, line and column. Arguments that an environment refuses are',
    '  reported when it is loaded, with its id and the key.',
    '- `--dry-run` prints the resolved config. Each run saves it as `config.toml`, which can be used as a config again.',
    '- Paths are relative to the folder in which the command is started.',
    '',
    '## Reinforcement learning (`node train.js @ file`)',
    ...table(rlSections()),
    '',
    '## Supervised training (`node cli.js sft @ file`)',
    ...table(sftSections()),
    '',
    '## Keys of other trainers',
    '',
    'A config of vf-rl runs with few changes. The following keys of vf-rl, prime-rl, TRL and the Hugging Face Trainer do not exist here:',
    '',
    '- *ignored*: the run continues and says so in one line',
    '- *refused*: the key would change the run, or has another name here; the message says what to write',
    '',
    'Every message starts with the key. Options that make up an algorithm, also those of the same name, are in',
    '[algorithms.md](algorithms.md#from-trl-and-prime-rl).',
    '',
    '| key | verdict | message, after the key |',
    '|---|---|---|',
    ...foreign,
    '',
  ].join('\n')
}
