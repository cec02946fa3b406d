/** Command-line options of the scripts in this folder. */
import { readFileSync } from 'node:fs'
import { basename } from 'node:path'
import { parseArgs, type ParseArgsConfig } from 'node:util'
import { messageOf } from '../src/common/errors.ts'

/** For JSON.stringify: four digits of a number are enough. */
export const rounded = (_: string, value: unknown): unknown => (typeof value === 'number' ? Number(value.toPrecision(4)) : value)

/** An option that takes a text. */
export const text = (value: string) => ({ type: 'string', default: value }) as const

/**
 * What `parseArgs` returns. `--help` prints the script's first comment and exits; unknown options are a sentence and exit code 2.
 * @param script the caller's `import.meta.filename`
 */
export function wordsOf<T extends ParseArgsConfig>(script: string, config: T): ReturnType<typeof parseArgs<T>> {
  if (process.argv.slice(2).some((word) => word === '--help' || word === '-h')) {
    console.log(headOf(script))
    process.exit(0)
  }
  try {
    return parseArgs(config)
  } catch (error) {
    console.error(`${basename(script)}: ${messageOf(error)} (--help says how it is used)`)
    process.exit(2)
  }
}

/** The comment that a script begins with, as plain text. */
export function headOf(script: string): string {
  const lines = readFileSync(script, 'utf8').split('\n')
  const end = lines.findIndex((line) => line.includes('*/'))
  return lines
    .slice(0, end + 1)
    .map((line) => line.replace(/^\/\*\* ?|^ \*\/|^ \* ?/, '').replace(/ ?\*\/$/, ''))
    .join('\n')
    .trim()
}
