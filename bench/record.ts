/**
 * Measures everything and writes it down: bench/results/bench.json, and the tables of docs/performance.md that are made from it.
 *
 *     node bench/record.ts [tables]        tables: measure nothing, only write the tables of bench/results/bench.json anew
 *
 * For a machine that does nothing else meanwhile. Further words go to `node cli.js bench all`.
 */
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { reportMarkdown, withTables } from '../src/bench/report.ts'
import type { BenchReport } from '../src/bench/run.ts'

const root = join(import.meta.dirname, '..')
const words = process.argv.slice(2)
if (words[0] !== 'tables') {
  const command = ['cli.js', 'bench', 'all', ...words, '--out', 'bench/results/bench.json']
  const { status } = spawnSync(process.execPath, command, { cwd: root, stdio: 'inherit' })
  if (status !== 0) process.exit(status ?? 1)
}
const report = JSON.parse(readFileSync(join(root, 'bench/results/bench.json'), 'utf8')) as BenchReport
const page = join(root, 'docs/performance.md')
writeFileSync(page, withTables(readFileSync(page, 'utf8'), reportMarkdown(report)))
console.log('docs/performance.md has the tables of bench/results/bench.json')
