/** Finds the final answer in a mathematical text: a model's answer, or the solution column of a dataset. */

/** The content of the last complete `\boxed{...}` or `\fbox{...}`, or null. Without braces (`\boxed 5`) it is the next token. */
export function lastBoxed(text: string): string | null {
  const boxes = [...text.matchAll(/\\(?:boxed|fbox) */gu)]
  if (boxes.length === 0) return null
  const ends = braceEnds(text)
  for (const { index, 0: command } of boxes.toReversed()) {
    const at = index + command.length
    const end = ends.get(at)
    const found =
      text[at] === '{'
        ? end !== undefined && text.slice(at + 1, end)
        : /^(?:\\[A-Za-z]+|[\w.-]+)/u.exec(text.slice(at, at + 40))?.[0]
    if (typeof found === 'string') return found.trim()
  }
  return null
}

/** For each opening brace that is closed, the index of its closing brace. Takes linear time, also for a text full of opening ones. */
function braceEnds(text: string): Map<number, number> {
  const ends = new Map<number, number>()
  const open: number[] = []
  for (let i = 0; i < text.length; i++) {
    if (text[i] === '\\') i++
    else if (text[i] === '{') open.push(i)
    else if (text[i] === '}' && open.length > 0) ends.set(open.pop()!, i)
  }
  return ends
}

/**
 * Matches `The answer is`, `Answer:`, `answer =`, and `Final Answer` at the start of a line (a heading). The answer follows, on this line or the next
 * one with text. "I hope this answer is helpful" announces nothing. No two repetitions that match the same characters stand side by side: a model that
 * repeats line ends would block the process.
 */
const announced =
  /(?:(?<!\bthis )\banswer(?:[\s*]+is\b|[\s*]*[:=])|^[#* \t]*(?:final )?answer\b(?=[\s*]*(?:\n|[^\s*A-Za-z])))[\s*:=]*/gimu

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

/** The answer after the last announcing phrase that text follows, up to the end of the sentence, without the marks of bold text and code. */
function lastAnnounced(text: string): string | null {
  const starts = Array.from(text.matchAll(announced), ({ index, 0: phrase }) => index + phrase.length)
  const start = starts.findLast((at) => at < text.length)
  if (start === undefined) return null
  const rest = text.slice(start)
  // A displayed formula may take several lines. Text behind it belongs to the answer: \[5\] or \[6\].
  const displayed = /^(?:\\\[(.*?)\\\]|\$\$(.*?)\$\$)[.*\t ]*(?:\n|$)/su.exec(rest)
  if (displayed) return (displayed[1] ?? displayed[2]).trim()
  const [line] = rest.split('\n', 1)
  // "5! = 120" goes on after a factorial.
  const sentence = line.replace(/(?:\.|!(?!\s*[-=+*/\\]))(?:\s.*)?$/u, '')
  return sentence
    .replaceAll('**', '')
    .trim()
    .replace(/^[_`]{1,2}|[*_`]{1,2}$/gu, '')
    .trim()
}
