import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { UserError } from '../../src/common/errors.ts'
import { assignAdvantages } from '../../src/orchestrator/algorithm.ts'
import { loadAlgorithm, type AlgorithmOptions } from '../../src/orchestrator/plugins.ts'
import { rollout } from './helpers.ts'

const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-plugins-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))
const file = (name: string, text: string) => {
  writeFileSync(join(dir, name), text)
  return join(dir, name)
}
const load = (over: Partial<AlgorithmOptions>) =>
  loadAlgorithm({ advantage: 'group_mean', advantage_args: {}, filters: ['zero_variance'], filter_args: {}, ...over })
const group = [0, 1, 0.5].map((reward, index) => rollout({ reward, index }))
const advantages = async (over: Partial<AlgorithmOptions>) =>
  assignAdvantages(group, await load(over)).map(({ advantage }) => advantage)

test('built-ins by name', async () => {
  expect(await advantages({})).toEqual([-0.5, 0.5, 0])
})

test('files of the user, in TypeScript, with their arguments', async () => {
  const advantage = file(
    'scaled.ts',
    'export default (group: { reward: number }[], args: { by: number }): number[] => group.map((r) => r.reward * args.by)',
  )
  const filter = file('long.ts', 'export default (group: object[], { least }: { least: number }) => group.length >= least')
  const options = { advantage, advantage_args: { by: 10 }, filters: ['zero_variance', filter] }
  expect(await advantages({ ...options, filter_args: { least: 3 } })).toEqual([0, 10, 5])
  expect(await advantages({ ...options, filter_args: { least: 4 } })).toEqual([null, null, null])
  expect(await advantages({ filters: [] })).toEqual([-0.5, 0.5, 0])
})

test('a file that throws says where', async () => {
  const advantage = file('typo.ts', '\nexport default (group) => group.map((r) => r.metrics.exact.value)')
  await expect(advantages({ advantage })).rejects.toThrow(/^The advantage .*typo\.ts threw: .* \(typo\.ts:2:\d+\)\.$/)
})

test.each([
  ['no such file', () => join(dir, 'none.ts'), /trainer\.args\.advantage: there is no file '.*none\.ts', and the built-in names are group_mean\./],
  ['a syntax error', () => file('broken.ts', 'export default ((('), /trainer\.args\.advantage: .*broken\.ts cannot be loaded: /],
  ['no default export', () => file('named.ts', 'export const advantage = () => []'), /named\.ts must export a function as its default/],
  ['a name of Object.prototype', () => 'toString', /there is no file 'toString'/],
])('%s', async (_, name, message) => {
  const wrong = load({ advantage: name() })
  await expect(wrong).rejects.toThrow(UserError)
  await expect(wrong).rejects.toThrow(message)
}) // prettier-ignore

test('a file that waits for what never comes is named', () => {
  const name = file('waits.ts', 'await new Promise(() => {})\nexport default (g: object[]) => g.map(() => 0)')
  const said = (module: string, call: string) => {
    const url = JSON.stringify(new URL(`../../src/${module}`, import.meta.url).href)
    const code = `import * as room from ${url}\nconsole.log(await room.${call}.catch((error) => error.message))`
    return execFileSync(process.execPath, ['--input-type=module', '-e', code], { encoding: 'utf8' }).trim()
  }
  const options = { advantage: name, advantage_args: {}, filters: [], filter_args: {} }
  const why = 'never loads: it awaits a promise that never settles.'
  expect(said('orchestrator/plugins.ts', `loadAlgorithm(${JSON.stringify(options)})`)).toBe(
    `trainer.args.advantage: ${name} ${why}`,
  )
  expect(said('trainer/losses/index.ts', `loadLoss(${JSON.stringify(name)}, {})`)).toBe(`The loss ${name} ${why}`)
})

test('the key of a filter is named', async () => {
  await expect(load({ filters: ['none'] })).rejects.toThrow(/trainer\.args\.filters: there is no file 'none'/)
})

test('a filter that cannot be loaded is told once, also while an advantage still loads', async () => {
  const advantage = file(
    'slow.ts',
    'await new Promise((resolve) => setTimeout(resolve, 30))\nexport default (g: object[]) => g.map(() => 0)',
  )
  const filters = [file('broken.ts', "throw new Error('a typo')")]
  // Without the wait an unhandled rejection would end these tests.
  await expect(load({ advantage, filters })).rejects.toThrow(/trainer\.args\.filters: .*broken\.ts cannot be loaded: a typo/)
})
