/**
 * A small preprocessor, so that kernels are real `.wgsl` files and still come in variants.
 *
 *     #include "weight.wgsl"        the text of a file beside this one or in src/kernels/common
 *     #if NAME / #if !NAME / #else / #endif      NAME is a constant of the variant; zero or missing is false
 *     #for i in 0..ROWS / #end      repeats its lines, with $(expression) replaced; bounds may be expressions too
 *     #let NAME = expression        a constant for the lines that follow, to the end of the file or of the turn of a loop
 *     $(expression)                 integer arithmetic over constants and loop variables
 *
 * Constants of a variant are also put at the head as `const NAME: u32 = value;`, so the shader compiler folds them. Unrolling
 * happens here and not in the driver because lavapipe keeps dynamically indexed arrays in memory.
 */
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** Integers that select a variant of a kernel. Booleans are 0 and 1. */
export type Constants = Record<string, number>

const commonFolder = join(dirname(fileURLToPath(import.meta.url)), '../kernels/common')
const files = new Map<string, string>()

function readSource(path: string): string {
  let text = files.get(path)
  if (text === undefined) files.set(path, (text = readFileSync(path, 'utf8')))
  return text
}

/**
 * Expands a kernel source.
 * @param path absolute path of the `.wgsl` file
 * @throws Error naming file and line for a malformed directive
 */
export function expandWgsl(path: string, constants: Constants): string {
  const out = Object.entries(constants).map(([name, value]) => `const ${name}: u32 = ${value}u;`)
  expandFile(path, constants, out)
  return out.join('\n')
}

function expandFile(path: string, constants: Constants, out: string[]): void {
  const lines = readSource(path).split(/\r?\n/)
  expandLines(path, lines, 0, lines.length, { ...constants }, out)
}

function expandLines(path: string, lines: string[], from: number, to: number, scope: Constants, out: string[]): void {
  for (let n = from; n < to; n++) {
    const line = lines[n]
    const directive = directiveOf(line)
    if (!directive) {
      out.push(line.includes('$(') ? substitute(line, scope, `${path}:${n + 1}`) : line)
      continue
    }
    const { word, rest } = directive
    const where = `${path}:${n + 1}`
    if (word === 'include') {
      const name = rest.replaceAll('"', '')
      const places = [dirname(path), commonFolder].map((folder) => join(folder, name))
      const included = places.find((place) => files.has(place) || existsSync(place))
      if (included === undefined) throw new Error(`${where}: there is no '${name}' beside the file or in kernels/common`)
      expandFile(included, scope, out)
    } else if (word === 'if') {
      const { middle, end } = matching(lines, n, to, 'if', path)
      if (!/^!?\w+$/.test(rest)) throw new Error(`${where}: '#if' wants '#if NAME' or '#if !NAME', not '${rest}'`)
      const negated = rest.startsWith('!')
      const truth = !!scope[negated ? rest.slice(1) : rest] !== negated
      if (truth) expandLines(path, lines, n + 1, middle ?? end, scope, out)
      else if (middle !== undefined) expandLines(path, lines, middle + 1, end, scope, out)
      n = end
    } else if (word === 'for') {
      const { end } = matching(lines, n, to, 'for', path)
      const loop = /^(\w+) in (.+)\.\.(.+)$/.exec(rest)
      if (!loop) throw new Error(`${where}: '#for' wants '#for i in 0..N'`)
      const [low, high] = [evaluate(loop[2], scope, where), evaluate(loop[3], scope, where)]
      for (let i = low; i < high; i++) expandLines(path, lines, n + 1, end, { ...scope, [loop[1]]: i }, out)
      n = end
    } else if (word === 'let') {
      const named = /^(\w+) = (.+)$/.exec(rest)
      if (!named) throw new Error(`${where}: '#let' wants '#let NAME = expression'`)
      scope[named[1]] = evaluate(named[2], scope, where)
    } else {
      throw new Error(`${where}: unexpected directive '#${word}'`)
    }
  }
}

const directives = ['include', 'if', 'else', 'endif', 'for', 'end', 'let']

/** The directive of a line, and the text after it without a trailing comment. */
function directiveOf(line: string): { word: string; rest: string } | undefined {
  const [, word, rest] = (line.includes('#') && /^\s*#(\w+)\s*(.*?)\s*(?:\/\/.*)?$/.exec(line)) || []
  return word === undefined ? undefined : { word, rest }
}

/** Finds the line that closes the block opened at `start`, and its `#else` if it has one. */
function matching(lines: string[], start: number, to: number, kind: 'if' | 'for', path: string) {
  const closer = kind === 'if' ? 'endif' : 'end'
  let depth = 0
  let middle: number | undefined
  for (let n = start + 1; n < to; n++) {
    const { word, rest } = directiveOf(lines[n]) ?? {}
    if (word === undefined) continue
    // Checked here because these lines may be left out of the expansion.
    if (!directives.includes(word) || (word === 'else' && rest))
      throw new Error(`${path}:${n + 1}: unexpected directive '#${word} ${rest}'`)
    if (word === kind) depth++
    else if (word === closer && depth-- === 0) return { middle, end: n }
    else if (word === 'else' && kind === 'if' && depth === 0) middle = n
  }
  throw new Error(`${path}:${start + 1}: '#${kind}' without '#${closer}'`)
}

function substitute(line: string, scope: Constants, where: string): string {
  let out = ''
  let done = 0
  for (let i = line.indexOf('$('); i >= 0; i = line.indexOf('$(', done)) {
    let depth = 1
    let j = i + 2
    for (; j < line.length && depth > 0; j++) depth += line[j] === '(' ? 1 : line[j] === ')' ? -1 : 0
    out += line.slice(done, i) + evaluate(line.slice(i + 2, j - 1), scope, where)
    done = j
  }
  return out + line.slice(done)
}

/** Values of evaluated expressions: an unrolled kernel has thousands of them, but few different ones. */
const values = new Map<string, number>()

function evaluate(expression: string, scope: Constants, where: string): number {
  const numeric = expression.replace(/[A-Za-z_]\w*/g, (name) => {
    if (!(name in scope)) throw new Error(`${where}: '${name}' is neither a constant nor a loop variable`)
    return String(scope[name])
  })
  const known = values.get(numeric)
  if (known !== undefined) return known
  if (!/^[\d+\-*/%() ]+$/.test(numeric)) throw new Error(`${where}: cannot evaluate '${expression}'`)
  const value = Math.floor(Number(new Function(`return (${numeric})`)()))
  values.set(numeric, value)
  return value
}

/** One `@group(0) @binding(n)` of a kernel, as the bind group layout needs it. */
export interface BindingDeclaration {
  binding: number
  name: string
  kind: 'read' | 'read_write' | 'texture'
  access?: GPUStorageTextureAccess
  format?: GPUTextureFormat
}

/** Reads the declarations that a layout needs out of expanded WGSL. */
export function bindingsOf(source: string): BindingDeclaration[] {
  const found: BindingDeclaration[] = []
  const pattern = /@group\(0\)\s*@binding\((\d+)\)\s*var(?:<storage,\s*(read_write|read)>)?\s+(\w+)\s*:\s*([^;]+);/g
  for (const [, binding, mode, name, type] of source.matchAll(pattern)) {
    const texture = /texture_storage_2d<(\w+),\s*(\w+)>/.exec(type)
    if (texture) {
      const access = texture[2] === 'read' ? 'read-only' : texture[2] === 'write' ? 'write-only' : 'read-write'
      found.push({ binding: Number(binding), name, kind: 'texture', access, format: texture[1] as GPUTextureFormat })
    } else found.push({ binding: Number(binding), name, kind: mode as 'read' | 'read_write' })
  }
  return found.sort((a, b) => a.binding - b.binding)
}

/** Maximum number of parameters of a kernel: they fill the bytes of immediates that every adapter has. */
const mostParams = 16

/**
 * Names and scalar types of the fields of `struct Params`, in order; empty if the kernel has none. All fields have 4 bytes.
 * @throws Error naming the kernel if a field has another type, or if there are too many fields for immediates
 */
export function paramsOf(source: string, kernel: string): { name: string; type: 'u32' | 'i32' | 'f32' }[] {
  const body = /struct\s+Params\s*\{([^}]*)\}/.exec(source)?.[1] ?? ''
  const fields = body.replaceAll(/\/\/.*/g, '').split(',')
  const params = fields.map((field) => field.trim()).filter((field) => field !== '')
  if (params.length > mostParams)
    throw new Error(`${kernel}: struct Params has ${params.length} fields; at most ${mostParams} are supported`)
  return params.map((field) => {
    const [, name, type] = /^(\w+)\s*:\s*(u32|i32|f32)$/.exec(field) ?? []
    if (!name) throw new Error(`${kernel}: struct Params has '${field}'; fields are u32, i32 or f32`)
    return { name, type: type as 'u32' | 'i32' | 'f32' }
  })
}
