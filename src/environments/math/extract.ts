/** Finds the final answer in a mathematical text: a model's answer, or the solution column of a dataset. */

/** The content of the last complete `\boxed{...}` or `\fbox{...}`, or null. Without braces (`\boxed 5`) it is the next token. */
export function lastBoxed(text: string): string | null {
  for (let from = text.length; from >= 0;) {
    const at = Math.max(text.lastIndexOf('\\boxed', from), text.lastIndexOf('\\fbox', from))
    if (at < 0) return null
    const found = argument(text, at + (text.startsWith('\\boxed', at) ? 6 : 5))
    if (found !== null) return found.trim()
    from = at - 1
  }
  return null
}

/** The argument of a command that ends at `start`: a group in balanced braces, or one token. Null if the braces are not closed. */
function argument(text: string, start: number): string | null {
  let at = start
  while (text[at] === ' ') at++
  if (text[at] !== '{') return /^(?:\\[A-Za-z]+|[\w.-]+)/u.exec(text.slice(at, at + 40))?.[0] ?? null
  let depth = 0
  for (let i = at; i < text.length; i++) {
    if (text[i] === '\\') i++
    else if (text[i] === '{') depth++
    else if (text[i] === '}' && --depth === 0) return text.slice(at + 1, i)
  }
  return null
}

/**
 * Matches `The answer is`, `Answer:`, `answer =`, and `Final Answer` at the start of a line (a heading). The answer follows, on this line or the next
 * one with text. No two repetitions that match the same characters stand side by side: a model that repeats line ends would block the process.
 */
const announcing =
  '(?:\\banswer(?:[\\s*]+is\\b|[\\s*]*[:=])|^[#* \\t]*(?:final )?answer\\b(?=[\\s*]*(?:\\n|[^\\s*A-Za-z])))[\\s*:=]*'
const announced = new RegExp(announcing, 'gimu')
const announcedLine = new RegExp(`${announcing}([^\\s][^\\n]*)`, 'gimu')

/**
 * Returns the final answer of a text: the last `\boxed{}`; else what follows the last `####` (GSM8K); else the last `answer is ...` or `answer: ...`;
 * else the whole text if it is one short line, which is how datasets write answers. Returns '' if there is none.
 */
export function extractAnswer(text: string): string {
  const boxed = lastBoxed(text)
  if (boxed !== null) return boxed
  const hash = text.lastIndexOf('####')
  if (hash >= 0)
    return text
      .slice(hash + 4)
      .trim()
      .split('\n')[0]
      .trim()
  const said = lastAnnounced(text)
  if (said !== null) return said
  const trimmed = text.trim()
  return trimmed.includes('\n') || trimmed.length > 200 ? '' : trimmed
}

/** The answer after the last announcing phrase, up to the end of the sentence. "Final Answer: The final answer is 5" has two such phrases. */
function lastAnnounced(text: string): string | null {
  const said = [...text.matchAll(announcedLine)].at(-1)?.[1]
  if (said === undefined) return null
  const sentence = said.replace(/[.!](?:\s.*)?$/u, '')
  const last = [...sentence.matchAll(announced)].at(-1)
  return (last ? sentence.slice(last.index + last[0].length) : sentence).replaceAll('**', '').trim()
}
