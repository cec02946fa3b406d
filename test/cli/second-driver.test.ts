/**
 * The same run on a second Vulkan driver: SwiftShader, which Debian's Chromium brings along (scripts/setup-chromium.sh). It compiles, schedules and rounds in its own
 * way, has subgroups of four and no f16, so it takes other kernels than the driver of the other tests, of the kind that GPUs take.
 */
import { existsSync } from 'node:fs'
import { expect, test } from 'vitest'
import { TinyRuns } from './tiny-run.ts'

const driver = '/usr/lib/chromium/vk_swiftshader_icd.json'
const runs = new TinyRuns()

test.skipIf(!existsSync(driver))('a run on SwiftShader samples the same tokens and learns the same from them', async () => {
  await runs.prepare()
  const swiftshader = { VK_DRIVER_FILES: driver, VK_ICD_FILENAMES: driver }
  for (const [name, env] of [
    ['here', {}],
    ['there', swiftshader],
  ] as const) {
    const { code, stderr } = await runs.run([`run_name=${name}`], env)
    expect(code, stderr).toBe(0)
  }
  const [here, there] = ['here', 'there'].map((name) => runs.numbers(name))
  expect(there).toHaveLength(here.length)
  for (const [i, row] of here.entries()) {
    expect(Object.keys(there[i])).toEqual(Object.keys(row))
    // A token that a rounding decides would move the reward and all else: then take another seed.
    for (const [key, value] of Object.entries(row)) {
      const [a, b] = [value, there[i][key]] as [number, number]
      expect(Math.abs(a - b), `step ${row.step as number}, ${key}: ${a} and ${b}`).toBeLessThanOrEqual(1e-5 * (1 + Math.abs(a)))
    }
  }
  // Sampler and trainer agree to the bit on each.
  for (const [first] of [here, there]) expect(first).toMatchObject({ 'mismatch_kl/all/max': 0, importance_ratio: 1 })
})
