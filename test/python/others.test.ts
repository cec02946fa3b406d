/** Environments that others wrote for verifiers, unchanged: one of verifiers' own that fetches nothing, and two packages of PyPI. */
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { Random } from '../../src/common/random.ts'
import type { Row } from '../../src/environments/index.ts'
import { seed, seedWords } from '../seed.ts'
import { asPythonJudges, opened, root, withoutVerifiers } from './helpers.ts'

const own = join(root, '.venv-verifiers', 'own-environments')
const lib = join(root, '.venv-verifiers', 'lib')
const packages = existsSync(lib) ? readdirSync(lib).flatMap((one) => readdirSync(join(lib, one, 'site-packages'))) : []
const there = existsSync(own) && packages.includes('sophistry_bench_sprint.py') && packages.includes('stardata')
if (!there)
  console.log('environments of others are missing: the test on them is skipped (scripts/test-verifiers.sh installs them)')

test.skipIf(withoutVerifiers || !there)("what they earn is what Python's own env.evaluate says of the same answers", async () => {
  const random = new Random(seed)
  const lastOf = ({ prompt }: Row) => prompt.at(-1)!.content

  // verifiers' echo-multi-v0: many turns.
  const echo = { id: 'echo_multi_v0', args: { phrases: ['first', 'second one', 'the third'] }, folders: [own] }
  const echoed = { first: 'First.', 'second one': 'the second', 'the third': 'the THIRD' }

  // sophistry-bench-sprint: rewards read the text that the task is about.
  const sophistry = { id: 'sophistry-bench-sprint', args: { n_items: 5, passage_chars: 600 } }
  const claimed = ({ info }: Row) => {
    const quote = () =>
      String(info.passage)
        .slice(random.int(300))
        .slice(0, 10 + random.int(60))
    const claims = Array.from({ length: random.int(12) }, (_, i) => `<claim>claim ${i}</claim>`)
    const quotes = Array.from({ length: random.int(6) }, () => `<cite>${random.int(2) ? quote() : 'nowhere in it'}</cite>`)
    return [...claims, ...quotes].join('\n') || 'no'
  }

  // staros-stardata: a module within a package; prompts are text, answers objects, and one of the metrics is no number.
  const poems = { id: 'stardata.envs.constraint_gym', args: { topics_per_form: 2 } }
  const lines = [
    'An old silent pond',
    'A frog jumps into the pond',
    'Splash! Silence again',
    'Never odd or even',
    'a',
    'all fall',
  ]
  const written = () => Array.from({ length: 1 + random.int(6) }, () => lines[random.int(lines.length)]).join('\n')

  const envs = await Promise.all([
    opened('./echo_multi_v0.py', echo.args, { base: own }),
    opened(sophistry.id, sophistry.args, { python: true }),
    opened(poems.id, poems.args, { python: true }),
  ])
  expect(envs.map(({ dataset }) => dataset.length)).toEqual([1, 10, 18])
  const answersOf = (i: number, say: (row: Row) => string) =>
    Object.fromEntries(envs[i].dataset.map((row) => [lastOf(row), say(row)]))
  const [turns, claims, poem] = await asPythonJudges([
    { env: envs[0], ...echo, answers: echoed },
    { env: envs[1], ...sophistry, answers: answersOf(1, claimed) },
    { env: envs[2], ...poems, answers: answersOf(2, written) },
  ])
  expect(turns).toEqual([2 / 3])
  expect(new Set(claims).size, seedWords).toBeGreaterThan(1)
  expect(new Set(poem).size, seedWords).toBeGreaterThan(3)
})
