/**
 * The door to @mlc-ai/web-xgrammar, XGrammar as WebAssembly (the wasm is inside of its one file: nothing is downloaded). It is loaded by hand:
 *  - its file is written as a CommonJS module in a package that says it is an ES module, so Node can import it neither way;
 *  - its masks can be had only asynchronously through its own classes, and are wanted at once: its inner binding is used instead;
 *  - a mistake in a grammar aborts the whole instance, with the reason on the console: each instance has a console of its own, and one that has
 *    aborted is not used again.
 * It is run as in a browser: its code for Node only looks for the file that it does not need.
 */
import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'

/** An object of the wasm's memory. */
interface Handle {
  delete(): void
}
export type TokenizerHandle = Handle
export type CompiledHandle = Handle
export type GrammarHandle = Handle
export interface MatcherHandle extends Handle {
  AcceptToken(id: number, verbose: boolean): boolean
  IsTerminated(): boolean
  GetNextTokenBitmask(vocabulary: number): Handle
}
interface CompilerHandle extends Handle {
  CompileGrammar(grammar: GrammarHandle): CompiledHandle
}

interface Binding {
  vecStringFromJSArray(values: Uint8Array[]): Handle
  vecIntFromJSArray(values: number[]): Handle
  vecIntToView(vector: Handle): Int32Array
  TokenizerInfo: new (
    vocabulary: Handle,
    kind: string,
    size: number | undefined,
    stops: Handle | undefined,
    prefix: boolean,
  ) => TokenizerHandle
  GrammarCompiler: new (tokenizer: TokenizerHandle, threads: number, cache: boolean) => CompilerHandle
  GrammarMatcher: new (grammar: CompiledHandle, stops: undefined, without: boolean, rollback: number) => MatcherHandle
  Grammar: { FromEBNF(text: string, root: string): GrammarHandle }
}

const EXPORTS = 'exports.default = index;'
let source: Promise<(...parameters: unknown[]) => void> | undefined

/** The library's code as a function of what it takes from around it. */
async function compiledSource(): Promise<(...parameters: unknown[]) => void> {
  const path = createRequire(import.meta.url).resolve('@mlc-ai/web-xgrammar')
  const text = await readFile(path, 'utf8')
  if (!text.includes(EXPORTS)) throw new Error(`${path} is not the version of @mlc-ai/web-xgrammar that package.json names.`)
  // oxlint-disable-next-line typescript/no-implied-eval -- a module that Node cannot import
  return new Function(
    'exports',
    'module',
    'process',
    'window',
    'document',
    'console',
    `${text.replace(EXPORTS, 'exports.binding = () => binding;')}`,
  ) as (...parameters: unknown[]) => void
}

/** One instance of the library, with memory of its own. */
export class XGrammar {
  readonly #binding: Binding
  /** What the library said, for the reason of an abort. */
  readonly #said: string[]

  private constructor(binding: Binding, said: string[]) {
    this.#binding = binding
    this.#said = said
  }

  static async open(): Promise<XGrammar> {
    source ??= compiledSource()
    const said: string[] = []
    const say = (line: unknown) => void said.splice(0, Math.max(0, said.length - 15), String(line)).length
    const library = {} as { binding(): Binding; Grammar: { builtinJSONGrammar(): Promise<{ dispose(): void }> } }
    const evaluate = await source
    const page = { baseURI: 'file:///', currentScript: null }
    evaluate(library, {}, undefined, {}, page, { log: say, error: say, warn: say })
    // The binding is made by the first call of anything.
    ;(await library.Grammar.builtinJSONGrammar()).dispose()
    return new XGrammar(library.binding(), said)
  }

  /** A vocabulary: the bytes of each id, none for ids that no grammar may draw. */
  tokenizer(vocabulary: Uint8Array[], stops: readonly number[]): TokenizerHandle {
    const words = this.#binding.vecStringFromJSArray(vocabulary)
    const ends = this.#binding.vecIntFromJSArray([...stops])
    try {
      return new this.#binding.TokenizerInfo(words, 'RAW', vocabulary.length, ends, false)
    } finally {
      words.delete()
      ends.delete()
    }
  }

  /** @throws Error with the library's reason; the instance is broken then. */
  parse(ebnf: string): GrammarHandle {
    return this.#told(() => this.#binding.Grammar.FromEBNF(ebnf, 'root'))
  }

  /** A grammar prepared for a vocabulary. @throws as `parse` */
  compile(ebnf: string, tokenizer: TokenizerHandle): CompiledHandle {
    return this.#told(() => {
      const grammar = this.#binding.Grammar.FromEBNF(ebnf, 'root')
      const compiler = new this.#binding.GrammarCompiler(tokenizer, 1, false)
      try {
        return compiler.CompileGrammar(grammar)
      } finally {
        compiler.delete()
        grammar.delete()
      }
    })
  }

  matcher(grammar: CompiledHandle): MatcherHandle {
    return new this.#binding.GrammarMatcher(grammar, undefined, false, -1)
  }

  /** Writes the tokens that may come next; words beyond the vocabulary are 0. */
  fill(matcher: MatcherHandle, vocabulary: number, mask: Uint32Array): void {
    const words = matcher.GetNextTokenBitmask(vocabulary)
    const view = this.#binding.vecIntToView(words)
    mask.fill(0, view.length)
    mask.set(view.subarray(0, mask.length))
    words.delete()
  }

  #told<T>(work: () => T): T {
    this.#said.length = 0
    try {
      return work()
    } catch (error) {
      const line = this.#said.find((said) => said.includes('[FATAL]')) ?? String(error)
      throw new Error(line.replace(/^\[FATAL\] \S+ /, ''), { cause: error })
    }
  }
}
