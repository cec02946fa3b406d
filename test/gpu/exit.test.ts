/** How processes end: by themselves, with the right code, and with the right words where there is no adapter. */
import { spawn } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, test } from 'vitest'
import { isWindows } from '../windows.ts'

const child = fileURLToPath(new URL('fixtures/child.ts', import.meta.url))

interface Ended {
  code: number | null
  signal: string | null
  out: string
  err: string
  seconds: number
}

function end(args: string[], env: Record<string, string> = {}): Promise<Ended> {
  const begin = performance.now()
  return new Promise((resolve) => {
    const process_ = spawn(process.execPath, args, { env: { ...process.env, ...env }, timeout: 60_000 })
    let [out, err] = ['', '']
    process_.stdout.on('data', (d) => (out += d))
    process_.stderr.on('data', (d) => (err += d))
    process_.on('close', (code, signal) => resolve({ code, signal, out, err, seconds: (performance.now() - begin) / 1000 }))
  })
}

describe('a process that used the device ends by itself', () => {
  // A second or less alone; the bound leaves room for a busy machine.
  const soon = 20
  test.each(['close', 'open'])('with code 0: %s', async (how) => {
    const { code, signal, out, err, seconds } = await end([child, how])
    expect({ code, signal, out }, err).toEqual({ code: 0, signal: null, out: '3 5 7\n' })
    expect(seconds).toBeLessThan(soon)
  })
  test('with code 0 by process.exit in the middle of work', async () => {
    const { code, signal, err } = await end([child, 'exit'])
    expect({ code, signal }, err).toEqual({ code: 0, signal: null })
  })
  test.each(['throw', 'reject'])('with code 1 and the reason: %s', async (how) => {
    const { code, signal, err, seconds } = await end([child, how])
    expect({ code, signal }, err).toEqual({ code: 1, signal: null })
    expect(err).toContain('on purpose')
    expect(seconds).toBeLessThan(soon)
  })
})

// A variable of Vulkan's loader hides the drivers, and Windows has D3D12 beside it.
describe.skipIf(isWindows)('no adapter', () => {
  const open = `
    const { Gpu } = await import(${JSON.stringify(new URL('../../src/gpu/gpu.ts', import.meta.url).href)})
    try { await Gpu.open(); console.log('opened') } catch (error) { console.log(error.name + ': ' + error.message) }`
  const run = (env: Record<string, string>): Promise<Ended> => end(['--input-type=module', '-e', open], env)
  test('on the machine: a UserError with the command that mends it', async () => {
    const { out, code } = await run({ VK_DRIVER_FILES: '/nonexistent', VK_ICD_FILENAMES: '/nonexistent', DAWN_RL_ADAPTER: '' })
    expect(out).toMatch(/^UserError: No WebGPU adapter was found on this machine\. Run 'bash scripts\/setup\.sh'/)
    expect(code).toBe(0)
  })
  test('on a machine that is no Linux: no word of the script, which installs nothing there', async () => {
    // The package chooses its binary by the platform as it is imported.
    const elsewhere = `await import(${JSON.stringify(import.meta.resolve('webgpu'))})
      Object.defineProperty(process, 'platform', { value: 'darwin' })`
    const none = { VK_DRIVER_FILES: '/nonexistent', VK_ICD_FILENAMES: '/nonexistent', DAWN_RL_ADAPTER: '' }
    const { out } = await end(['--input-type=module', '-e', elsewhere + open], none)
    expect(out).toMatch(
      /^UserError: No WebGPU adapter was found on this machine\. Update the graphics driver, or run 'node cli.js doctor'/,
    )
  })
  test('of the name that was asked for', async () => {
    const { out } = await run({ DAWN_RL_ADAPTER: 'no such card' })
    expect(out).toMatch(/^UserError: No WebGPU adapter has 'no such card' in its name/)
  })
})
