/** `tune` as a user runs it, and that runs take what it kept. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, expect, it } from 'vitest'
import { Gpu } from '../../src/gpu/gpu.ts'
import { defaultTiles, tileCandidates, tilesOf, type TileName, type Tiles } from '../../src/kernels/matmul/tiles.ts'
import { tuneKey, writeTuned } from '../../src/kernels/matmul/tuned.ts'

const root = join(dirname(fileURLToPath(import.meta.url)), '../..')
const cache = mkdtempSync(join(tmpdir(), 'dawn-rl-tune-'))
const path = join(cache, 'dawn-rl', 'tune.json')
const own = { XDG_CACHE_HOME: process.env.XDG_CACHE_HOME, DAWN_RL_TUNE: process.env.DAWN_RL_TUNE }
afterAll(() => {
  rmSync(cache, { recursive: true })
  setEnvironment(own)
})

function setEnvironment(values: Record<string, string | undefined>): void {
  for (const [name, value] of Object.entries(values)) {
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
}

/** What a fresh device takes. */
async function taken(): Promise<Tiles> {
  const gpu = await Gpu.open()
  const tiles = tilesOf(gpu)
  gpu.close()
  return tiles
}

it(
  'prints a table, keeps the best of each kernel beside what other adapters have, and runs take it',
  { timeout: 90_000 },
  async () => {
    mkdirSync(dirname(path))
    writeFileSync(path, JSON.stringify({ version: 1, adapters: { other: { tiles: {}, date: '2026-01-01' } } }))
    const env = { ...process.env, XDG_CACHE_HOME: cache, DAWN_RL_TUNE: undefined }
    const start = performance.now()
    const { status, stdout, stderr } = spawnSync(process.execPath, [join(root, 'cli.js'), 'tune'], { encoding: 'utf8', env })
    expect({ status, errors: stderr.replaceAll(/^Warning: .*\n/gm, '') }).toEqual({ status: 0, errors: '' })
    expect(performance.now() - start).toBeLessThan(60_000)
    expect(stdout).toMatch(/^adapter +\S/)
    expect(stdout).toContain(`kept in ${path}`)
    const chosen = [...stdout.matchAll(/(\d+) x (\d+) +\d+\.\d +chosen$/gm)].map(([, rows, columns]) => [
      Number(rows),
      Number(columns),
    ])
    const file = JSON.parse(readFileSync(path, 'utf8')) as { adapters: Record<string, { tiles: Partial<Tiles> }> }
    expect(file.adapters.other).toEqual({ tiles: {}, date: '2026-01-01' })
    const gpu = await Gpu.open()
    const { tiles } = file.adapters[tuneKey(gpu)]
    gpu.close()
    expect(Object.values(tiles).map(({ rows, columns }) => [rows, columns])).toEqual(chosen)
    expect(chosen.length).toBeGreaterThan(0)
    setEnvironment({ XDG_CACHE_HOME: cache, DAWN_RL_TUNE: undefined })
    expect(await taken()).toEqual({ ...defaultTiles, ...tiles })
  },
)

it('a cache that cannot be written is refused before anything is measured', () => {
  writeFileSync(join(cache, 'file'), '')
  for (const folder of [join(cache, 'file'), ...(existsSync('/proc/self') ? ['/proc/nothing'] : [])]) {
    const options = { encoding: 'utf8' as const, timeout: 20_000, env: { ...process.env, XDG_CACHE_HOME: folder } }
    const { status, stdout, stderr } = spawnSync(process.execPath, [join(root, 'cli.js'), 'tune'], options)
    expect(stderr).toContain(`What is measured cannot be kept in ${join(folder, 'dawn-rl')}: `)
    expect(status).toBe(2)
    expect(stdout).not.toContain(' x ')
  }
})

it.runIf(existsSync('/dev/full'))(
  'a disk that is full by the end leaves nothing half written, and what to do is said',
  async () => {
    setEnvironment({ XDG_CACHE_HOME: join(cache, 'full'), DAWN_RL_TUNE: undefined })
    const folder = join(cache, 'full', 'dawn-rl')
    mkdirSync(folder, { recursive: true })
    symlinkSync('/dev/full', join(folder, `tune.json.${process.pid}.tmp`))
    const gpu = await Gpu.open()
    expect(() => writeTuned(gpu, {})).toThrow(
      `What is measured cannot be kept in ${folder}: ENOSPC: no space left on device, write. Set XDG_CACHE_HOME to another folder.`,
    )
    gpu.close()
    expect(readdirSync(folder)).toEqual([])
  },
)

it('DAWN_RL_TUNE=0 and a damaged file give the built-in sizes; sizes that no kernel has are left out', async () => {
  setEnvironment({ XDG_CACHE_HOME: cache, DAWN_RL_TUNE: undefined })
  const gpu = await Gpu.open()
  const name: TileName = 'nnCpu'
  const other = tileCandidates[name].find((tile) => tile.rows !== defaultTiles[name].rows)!
  expect(writeTuned(gpu, { [name]: other, ntCpu: { rows: 5, columns: 7 } })).toBe(path)
  gpu.close()
  expect(await taken()).toEqual({ ...defaultTiles, [name]: other })
  setEnvironment({ DAWN_RL_TUNE: '0' })
  expect(await taken()).toEqual(defaultTiles)
  setEnvironment({ DAWN_RL_TUNE: undefined })
  for (const text of ['{', '[]', '{"version": 9, "adapters": {}}', '{"version": 1, "adapters": null}']) {
    writeFileSync(path, text)
    expect(await taken()).toEqual(defaultTiles)
  }
})
