/**
 * Normalises the many ways to write an answer (LaTeX, plain text, Unicode) into one form of LaTeX, which the other files of this folder read. It
 * changes only the notation, never the value.
 */

const symbols: Record<string, string> = {
  '−': '-', '–': '-', '—': '-', '×': '\\times ', '·': '\\times ', '⋅': '\\times ', '∙': '\\times ', '÷': '/', '∕': '/', '⁄': '/',
  π: '\\pi ', θ: '\\theta ', α: '\\alpha ', β: '\\beta ', λ: '\\lambda ', '∞': '\\infty ', '°': '\\degree ', '≤': '\\le ', '≥': '\\ge ',
  '≠': '\\ne ', '≈': '\\approx ', '∪': '\\cup ', '∩': '\\cap ', '∈': '\\in ', '∅': '\\emptyset ', 'ℝ': '\\mathbb{R}', '±': '\\pm ', '∓': '\\mp ',
  '’': "'", '′': "'", '“': '"', '”': '"', '\u00a0': ' ', '\u2009': ' ', '\u202f': ' ', '，': ',', '（': '(', '）': ')', '＝': '=', '⟨': '\\langle ', '⟩': '\\rangle ',
} // prettier-ignore
const symbolPattern = new RegExp(`[${Object.keys(symbols).join('').replaceAll('-', '\\-')}]`, 'gu')

/** Function names that plain text writes without a backslash. */
const functions = 'arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp|max|min|gcd|lcm'
const greek = 'pi|theta|alpha|beta|gamma|delta|lambda|omega|sigma|phi|infty'

type Rule = [RegExp, string | ((match: string, ...groups: any[]) => string)]

/** Applied in order, as later rules rely on earlier ones. */
const rules: Rule[] = [
  // Unicode's fractions, superscripts and subscripts. Their compatible forms are 1⁄2 and plain digits.
  [/[¼-¾⅐-⅞]/gu, (char) => char.normalize('NFKC').replace(/(\d+)⁄(\d+)/u, '\\frac{$1}{$2}')],
  [/[²³¹⁰⁴-⁹⁺⁻ⁿ]+/gu, (power) => `^{${power.normalize('NFKC')}}`],
  [/[₀-₉]+/gu, (index) => `_{${index.normalize('NFKC')}}`],
  [symbolPattern, (char) => symbols[char]],
  [/√\s*\(([^()]*)\)/gu, '\\sqrt{$1}'],
  [/√\s*(\d+|\w)/gu, '\\sqrt{$1}'],
  // Spacing and size. Rows of matrices end with \\, which must not be read as the space "\ ".
  [/\\(?:left|right)\s*\./gu, ''],
  [/\\(?:left|right|bigg?[lr]?|Bigg?[lr]?)(?![A-Za-z])/gu, ''],
  [/\\(?:displaystyle|textstyle|limits|nolimits|mathstrut|strut)(?![A-Za-z])/gu, ''],
  [/\\(?:hspace|vspace|phantom)\{[^{}]*\}/gu, ' '],
  [/\\\\/gu, '\ue000'],
  [/\{\s*([,:])\s*\}/gu, '$1'],
  [/(\d)(?:\\[,!:; ]|~)+(?=\d{3}(?!\d))/gu, '$1,'],
  [/,\\!/gu, ','],
  [/\\[,!:;> ]|~|\\q?quad(?![A-Za-z])/gu, ' '],
  [/\ue000/gu, '\\\\'],
  // Text. "or" between inequalities becomes a union. "and" may mean an intersection, and stays a list.
  [/\\(?:mbox|text(?:rm|bf|it|sf|tt|up|normal)|math(?:rm|bf|it|sf|tt)|operatorname\*?|rm|bf)\s*\{([^{}]*)\}/gu, wrapped],
  [/\\text\s*\{([^{}]*)\}/gu, wrapped],
  [/^\\text\{(?![^{}]*\b(?:not|never|wrong)\b)[^{}]*(?:\bis|[:=])\s*\}\s*/iu, ''],
  // A whole answer as text, such as \text{(1, 2)}, is read as without the command. Words alone are words with or without it.
  [/^\\text\{([^{}]*[\d(,][^{}]*)\}$/u, '$1'],
  [/^(?:\\text\{)?\s*all real numbers\s*\}?$/iu, '\\mathbb{R}'],
  [/\\(?:lor|vee)(?![A-Za-z])/gu, '\\text{ or }'],
  [/(?:\\text\{\s*or\s*\}|\bor\b)(?=[^,]*(?:[<>]|\\[lg]e))/giu, '\\cup '],
  [/\\text\{\s*,?\s*(?:and|or)\s*\}/giu, ','],
  [/,?\s+\b(?:and|or)\b\s+/giu, ','],
  [/,\s*,/gu, ','],
  // One command for synonyms
  [/\\[dtc]frac(?![A-Za-z])/gu, '\\frac'],
  [/\\(?:leq|leqslant)(?![A-Za-z])|<=/gu, '\\le '],
  [/\\(?:geq|geqslant)(?![A-Za-z])|>=/gu, '\\ge '],
  [/\\neq(?![A-Za-z])|!=/gu, '\\ne '],
  [/\\lt(?![A-Za-z])/gu, '<'],
  [/\\gt(?![A-Za-z])/gu, '>'],
  [/\*\*/gu, '^'],
  [/\\(?:cdot|ast|bullet)(?![A-Za-z])|\*/gu, '\\times '],
  [/\\(?:varnothing|O)(?![A-Za-z])|\\\{\s*\\\}/gu, '\\emptyset '],
  [/\\(?:R|Reals|reals)(?![A-Za-z])/gu, '\\mathbb{R}'],
  [/\\[lr]vert(?![A-Za-z])|\\mid(?![A-Za-z])|\\vert(?![A-Za-z])/gu, '|'],
  [/\\lbrace(?![A-Za-z])/gu, '\\{'],
  [/\\rbrace(?![A-Za-z])/gu, '\\}'],
  [
    /\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z])|o(?![A-Za-z])|\{\s*\\text\{o\}\s*\}|\{\s*o\s*\})|\\degrees?(?![A-Za-z])/gu,
    '\\degree ',
  ],
  [/\\?%|\\percent(?![A-Za-z])/gu, '\\% '],
  [/\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))/gu, (_, group, digit) => `\\overline{${group ?? digit}}`],
  // Arrays in brackets are matrices.
  [/\\(begin|end)\{array\}(?:\s*\{[^{}]*\})?/gu, '\\$1{matrix}'],
  [/\|\s*\\begin\{matrix\}([^|]*)\\end\{matrix\}\s*\|/gu, '\\begin{vmatrix}$1\\end{vmatrix}'],
  [/\[\s*(\\begin\{matrix\}[^[\]]*\\end\{matrix\})\s*\]/gu, '$1'],
  // Braces
  [/\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}/gu, '\\frac{$1}{$2}'],
  [/\\frac\s*(\d)\s*(\d)/gu, '\\frac{$1}{$2}'],
  [/\\frac\s*(\w)\s*\{/gu, '\\frac{$1}{'],
  [/\\frac\s*\{([^{}]*)\}\s*(\w)/gu, '\\frac{$1}{$2}'],
  [/\\sqrt\s*([\da-zA-Z])/gu, '\\sqrt{$1}'],
  [/\^\s*(-?\d+)/gu, '^{$1}'],
  [/\^\s*\(([^()]*)\)/gu, '^{$1}'],
  [/_\s*(\d+)/gu, '_{$1}'],
  [/\\binom\s*(\d)\s*(\d)/gu, '\\binom{$1}{$2}'],
  // Plain text
  [/(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)/gu, '\\sqrt{$1}'],
  [new RegExp(`(?<![A-Za-z\\\\{])(${functions})(?=\\s*[\\d(^_])`, 'gu'), '\\$1'],
  [new RegExp(`(?<![A-Za-z\\\\{])(${greek})(?![A-Za-z])`, 'gu'), '\\$1 '],
  [/(?<![A-Za-z\\{])(?:infinity|inf|oo)(?![A-Za-z])/giu, '\\infty '],
  [/\+\s*\\infty/gu, '\\infty'],
  [/^(-?\d+(?:\.\d+)?)\s*[eE]\+?(-?\d{1,6})$/u, '$1\\times 10^{$2}'],
  [/(\d)\s*[xX]\s*(?=10\s*\^)/gu, '$1\\times '],
  [/\s+/gu, ' '],
]

/** Rewrites an answer as plain LaTeX: no spacing commands, no `$`, and only one notation for fractions, powers, roots, degrees, percent and text. */
export function cleanAnswer(value: string): string {
  let s = undollar(
    value
      .normalize('NFC')
      .trim()
      .replace(/^\*\*(.*)\*\*$/su, '$1'),
  )
  for (const [pattern, by] of rules) s = s.replace(pattern, by as string)
  return ungroup(s.trim())
    .replace(/(?<=\S)\s*[.,;]+$/u, '')
    .trim()
}

/**
 * The argument of a formatting command. A single letter (a constant, a point) or a number stands for itself, anything else becomes text. So does a
 * letter that is the unit of a number before it (`5\text{ m}`); bold and lower-case i, j, k are vectors.
 */
function wrapped(command: string, inner: string, at: number, text: string): string {
  const word = inner.trim()
  const isUnit =
    /^[mgshlLNJWVK]$/u.test(word) &&
    !/^\\(?:text|math)?bf/u.test(command) &&
    /[\d}]\s*$/u.test(text.slice(0, at)) &&
    /^\s*(?:\^\s*(?:[23]|\{\s*[23]\s*\}))?\s*(?:[,;.)\]]|$)/u.test(text.slice(at + command.length))
  if (/^[a-zA-Z]$/u.test(word) && !isUnit) return word
  if (/^[-+]?[\d.,/]+$/u.test(word)) return word
  return `\\text{${inner}}`
}

/** Removes `$...$`, `\(...\)` and similar delimiters. If the number of dollar signs is odd, one before a number is money and stays. */
function undollar(text: string): string {
  // The \\[2pt] that ends a matrix row has an extra space, and is not a \[.
  let s = text
    .replace(/\\\\\s*\[-?[\d.]+[a-z]{2}\]/gu, '\\\\')
    .replace(/\\\(|\\\)|\\\[|\\\]/gu, ' ')
    .trim()
  s = s.replace(/\\text\{\s*\\?\$\s*\}/gu, '\\$')
  const dollars = s.match(/(?<!\\)\$/gu)?.length ?? 0
  if (dollars % 2 === 0) s = s.replace(/(?<!\\)\$/gu, ' ')
  else s = s.replace(/(?<!\\)\$(?=\s*-?[\d.])/u, '\\$').replace(/(?<!\\)\$/gu, ' ')
  return s.trim()
}

/** Removes braces around the whole text: `{ab}` becomes `ab`. */
function ungroup(s: string): string {
  if (!s.startsWith('{') || !s.endsWith('}')) return s
  let depth = 0
  for (let i = 0; i < s.length; i++) {
    if (s[i] === '\\') i++
    else if (s[i] === '{') depth++
    else if (s[i] === '}' && --depth === 0 && i < s.length - 1) return s
  }
  return s.slice(1, -1).trim()
}
