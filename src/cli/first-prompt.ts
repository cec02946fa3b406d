/** An environment's first task as the model is asked it: the templated prompt, special tokens and all. `train` and `env check` show the same lines. */
import type { ChatTemplate, Environment } from '../environments/index.ts'
import type { Tokenizer } from '../model/tokenizer.ts'
import { printable } from '../monitor/format.ts'
import type { RunEnvironment } from '../orchestrator/tasks.ts'

/** Characters of an answer and of an info. */
const ROW = 160

/**
 * `first prompt of coin: 38 tokens, 4 of them special; answer "heads"`, then the prompt's lines, each behind `  | `.
 * `lines`: of a longer prompt the middle is left out, so that a question at its end is seen (4 at least); `width`: the same of a line.
 * Throws the template's complaint.
 */
export function firstPrompt(
  { name, env }: { name: string; env: Environment },
  { tokenizer, template }: { tokenizer: Tokenizer; template: ChatTemplate },
  { lines: most = 12, width = 160 }: { lines?: number; width?: number } = {},
): string[] {
  const [{ prompt, answer, info }] = env.dataset
  const { ids, text } = template.prompt(prompt, env.tools)
  const special = ids.filter((id) => tokenizer.isSpecial(id)).length
  const row = [
    ...(answer === '' ? [] : [`; answer ${cut(JSON.stringify(answer), ROW)}`]),
    ...(Object.keys(info).length === 0 ? [] : [`; info ${cut(JSON.stringify(info), ROW)}`]),
  ].join('')
  const head = printable(`first prompt of ${name}: ${ids.length} tokens, ${special} of them special${row}`)
  const lines = printable(text)
    .split('\n')
    .map((line) => `  | ${cut(line, width)}`)
  const room = most - 1
  if (lines.length <= room) return [head, ...lines]
  const [first, last] = [Math.ceil((room - 1) / 2), Math.floor((room - 1) / 2)]
  const left = `  : ${lines.length - first - last} lines more`
  return [head, ...lines.slice(0, first), left, ...lines.slice(-last)]
}

/** Those of all environments of a run; of many each is shorter. */
export function firstPrompts(
  environments: readonly RunEnvironment[],
  model: { tokenizer: Tokenizer; template: ChatTemplate },
): string[] {
  const lines = Math.min(12, Math.max(6, Math.floor(36 / environments.length)))
  return environments.flatMap((source) => firstPrompt(source, model, { lines }))
}

/** Text of at most `width` characters, with how many are left out of its middle. */
function cut(text: string, width: number): string {
  const chars = Array.from(text)
  if (chars.length <= width) return text
  const half = Math.floor(width / 2) - 10
  return `${chars.slice(0, half).join('')} … ${chars.length - 2 * half} characters … ${chars.slice(-half).join('')}`
}
