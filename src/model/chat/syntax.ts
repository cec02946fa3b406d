/** Parts of jinja2's syntax that the library does not read, written as what it reads. */

/** The function whose call block is written as it is. */
export const BLOCK = 'block__'

const RAW = /\{%([-+]?)\s*raw\s*(-?)%\}(.*?)\{%([-+]?)\s*endraw\s*([-+]?)%\}/gsu
/** The tags that transformers adds, around what the model is to write. The library leaves them out with white space that other tags would keep. */
const BLOCKS = /\{%([-+]?)\s*(?:(end)?(?:generation|with)|with\s(.*?))\s*([-+]?)%\}/gsu

/** Text as a literal, of which no sign can begin a tag. */
const literal = (text: string) =>
  `'${text.replaceAll(/[^ \w]/gu, (sign) => Array.from({ length: sign.length }, (_, i) => `\\u${sign.charCodeAt(i).toString(16).padStart(4, '0')}`).join(''))}'`

const asText = (_: string, before: string, first: string, text: string, last: string, after: string) => {
  const start = first === '-' ? text.trimStart() : text
  const shown = last === '-' ? start.trimEnd() : last === '+' ? start : start.replace(/\n[ \t]*$/u, '\n')
  return `{%${before} call ${BLOCK}() %}{{ ${literal(shown)} }}{% endcall ${after}%}`
}
/** What `with` names are the block's parameters, which have values by default. */
const asCall = (_: string, before: string, end: string | undefined, names: string | undefined, after: string) =>
  `{%${before} ${end ? 'endcall' : `call${names ? `(${names})` : ''} ${BLOCK}()`} ${after}%}`

/** A template without `raw`, `with` and `generation`. */
export const plainBlocks = (source: string): string => source.replaceAll(RAW, asText).replaceAll(BLOCKS, asCall)

/** A token as the library reads it. */
export interface Token {
  type: string
  value: string
}

const OPENING = new Set(['OpenParen', 'OpenSquareBracket', 'OpenCurlyBracket'])
const CLOSING = new Set(['CloseParen', 'CloseSquareBracket', 'CloseCurlyBracket'])
const ARGUMENTS = new Set(['Identifier', 'StringLiteral', 'NumericLiteral', ...OPENING])
/** Words after a test that are no argument of it. */
const WORDS = new Set(['and', 'or', 'else', 'if', 'in', 'is', 'not'])

/** Tests with arguments as filters with their names: `x is divisibleby 3` is read as `x | is divisibleby(3)`. */
export function testsAsFilters(tokens: readonly Token[]): Token[] {
  const out: Token[] = []
  const is = (token: Token | undefined, type: string, value?: string) =>
    token?.type === type && (value === undefined || token.value === value)
  for (let i = 0; i < tokens.length; i++) {
    const at = is(tokens[i + 1], 'Identifier', 'not') ? i + 2 : i + 1
    const [test, next] = [tokens[at], tokens[at + 1]]
    const argument = next !== undefined && ARGUMENTS.has(next.type) && !(next.type === 'Identifier' && WORDS.has(next.value))
    if (!is(tokens[i], 'Identifier', 'is') || is(tokens[i - 1], 'Dot') || !is(test, 'Identifier') || !argument) {
      out.push(tokens[i])
      continue
    }
    out.push({ type: 'Pipe', value: '|' })
    out.push({ type: 'Identifier', value: `${at === i + 1 ? 'is' : 'is not'} ${test.value}` })
    i = at
    if (next.type === 'OpenParen') continue
    let end = after(tokens, i + 1)
    while (OPENING.has(tokens[end]?.type) || is(tokens[end], 'Dot')) end = is(tokens[end], 'Dot') ? end + 2 : after(tokens, end)
    out.push({ type: 'OpenParen', value: '(' }, ...testsAsFilters(tokens.slice(i + 1, end)), { type: 'CloseParen', value: ')' })
    i = end - 1
  }
  return out
}

/** Where the token at `from` ends, with all that is in its brackets. */
function after(tokens: readonly Token[], from: number): number {
  let depth = 0
  for (let i = from; i < tokens.length; i++) {
    if (OPENING.has(tokens[i].type)) depth++
    if (CLOSING.has(tokens[i].type)) depth--
    if (depth === 0) return i + 1
  }
  return tokens.length
}
