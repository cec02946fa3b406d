import { afterEach, expect, test } from 'vitest'
import { openDevice } from '../../src/gpu/adapter.ts'
import { backendsOf, findAdapters } from '../../src/gpu/backends.ts'

const before = process.env.DAWN_RL_BACKEND
afterEach(() => {
  if (before === undefined) delete process.env.DAWN_RL_BACKEND
  else process.env.DAWN_RL_BACKEND = before
})

test('Windows has two, of which Vulkan is asked first; elsewhere Dawn chooses; DAWN_RL_BACKEND names one', () => {
  expect(backendsOf('win32', undefined)).toEqual(['vulkan', 'd3d12'])
  expect(backendsOf('linux', undefined)).toEqual([undefined])
  expect(backendsOf('darwin', '')).toEqual([undefined])
  expect(backendsOf('win32', 'd3d12')).toEqual(['d3d12'])
  expect(() => backendsOf('linux', 'cuda')).toThrow(
    'DAWN_RL_BACKEND=cuda is not supported: set it to one of vulkan, d3d12, metal, or unset it.',
  )
})

/** Instances of these backends with one adapter each. */
async function chosen(adapters: Record<string, 'gpu' | 'cpu' | 'none' | 'broken'>): Promise<string[]> {
  const create = (flags: string[]) => {
    const backend = flags[0]?.split('=')[1] ?? 'own'
    const kind = adapters[backend]
    if (kind === 'broken') throw new Error('no suitable backends found')
    const adapter = { info: { description: `${backend} ${kind}`, isFallbackAdapter: kind === 'cpu' } }
    return { requestAdapter: async () => (kind === 'none' ? null : adapter) } as unknown as GPU
  }
  const found = await Array.fromAsync(findAdapters(create, ({ isFallbackAdapter }) => isFallbackAdapter, ['vulkan', 'd3d12']))
  return found.map(({ adapter }) => adapter.info.description)
}

test('a real GPU comes before a software one of a backend that is preferred, and a backend that has none or fails is left out', async () => {
  expect(await chosen({ vulkan: 'gpu', d3d12: 'gpu' })).toEqual(['vulkan gpu', 'd3d12 gpu'])
  expect(await chosen({ vulkan: 'cpu', d3d12: 'gpu' })).toEqual(['d3d12 gpu', 'vulkan cpu'])
  expect(await chosen({ vulkan: 'none', d3d12: 'cpu' })).toEqual(['d3d12 cpu'])
  expect(await chosen({ vulkan: 'broken', d3d12: 'gpu' })).toEqual(['d3d12 gpu'])
  expect(await chosen({ vulkan: 'broken', d3d12: 'none' })).toEqual([])
})

test('a backend that this system does not have is named, with what to do', async () => {
  process.env.DAWN_RL_BACKEND = process.platform === 'darwin' ? 'd3d12' : 'metal'
  await expect(openDevice()).rejects.toThrow(
    /^No WebGPU adapter was found through (metal|d3d12) \(DAWN_RL_BACKEND\)\. Unset it; '.*doctor' lists the adapters of this machine\.$/,
  )
  process.env.DAWN_RL_BACKEND = process.platform === 'darwin' ? 'metal' : 'vulkan'
  const { device, facts } = await openDevice()
  expect(facts.name).not.toBe('')
  device.destroy()
})
