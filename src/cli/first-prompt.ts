/** An environment's first prompt as the model sees it, with the chat template and special tokens. `train` and `env check` print the same lines. */
import type { ChatTemplate, Environment } from '../environments/index.ts'
import type { Tokenizer } from '../model/tokenizer/tokenizer.ts'
import { printable } from '../monitor/format.ts'
import type { RunEnvironment } from '../orchestrator/tasks.ts'

/** Characters of the answer and of info that are shown. */
const ROW = 160

/**
 * `first prompt of coin: 38 tokens, 4 of them special; answer "heads"`, then the prompt's lines, each behind `  | `.
 * `lines` (4 or more): a longer prompt loses its middle, so that a question at its end is seen; `width`: the same for a long line.
 * Throws the template's error.
 */
export function firstPrompt(
  { name, env }: { name: string; env: Environment },
  { tokenizer, template }: { tokenizer: Tokenizer; template: ChatTemplate },
  { lines: most = 12, width = 160 }: { lines?: number; width?: number } = {},
): string[] {
  const [{ prompt, answer, info, variables }] = env.dataset
  const { ids, text } = template.with(variables).prompt(prompt, env.tools)
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

/** The first prompts of all environments of a run; the more there are, the shorter each. */
export function firstPrompts(
  environments: readonly RunEnvironment[],
  model: { tokenizer: Tokenizer; template: ChatTemplate },
): string[] {
  const lines = Math.min(12, Math.max(6, Math.floor(36 / environments.length)))
  return environments.flatMap((source) => firstPrompt(source, model, { lines }))
}

/** A text cut to `width` characters in its middle, with the number that was left out. */
function cut(text: string, width: number): string {
  const chars = Array.from(text)
  if (chars.length <= width) return text
  const half = Math.floor(width / 2) - 10
  return `${chars.slice(0, half).join('')} … ${chars.length - 2 * half} characters … ${chars.slice(-half).join('')}`
}
