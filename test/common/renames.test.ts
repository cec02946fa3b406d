/** Names that are taken where a system refuses it for a moment, as Windows does while another process has the file open. */
import fs from 'node:fs'
import files from 'node:fs/promises'
import { syncBuiltinESMExports } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { moveTo, moveToSync } from '../../src/common/renames.ts'
import { writeFolderWhole, writeWhole } from '../../src/model/files/files.ts'
import { writeFileAtomic } from '../../src/common/atomic.ts'
import { pointAt } from '../../src/monitor/run-folder.ts'
import { canLink } from '../windows.ts'

/** A folder on a system whose renames are refused so often with this code. */
function refusing(times: number, code: string, system = 'win32') {
  const folder = fs.mkdtempSync(join(tmpdir(), 'dawn-rl-renames-'))
  const [rename, renameSync] = [files.rename, fs.renameSync]
  const platform = Object.getOwnPropertyDescriptor(process, 'platform')!
  const state = { folder, left: times, asked: 0 }
  const refuse = () => {
    state.asked++
    if (state.left-- > 0) throw Object.assign(new Error(`${code}: refused, rename`), { code, syscall: 'rename' })
  }
  files.rename = async (from, to) => (refuse(), await rename(from, to))
  fs.renameSync = (from, to) => (refuse(), renameSync(from, to))
  syncBuiltinESMExports()
  Object.defineProperty(process, 'platform', { ...platform, value: system })
  onTestFinished(() => {
    Object.assign(files, { rename })
    Object.assign(fs, { renameSync })
    syncBuiltinESMExports()
    Object.defineProperty(process, 'platform', platform)
    fs.rmSync(folder, { recursive: true })
  })
  return state
}

test.each(['EPERM', 'EBUSY', 'EACCES'])('what is written takes its name in the end: %s', async (code) => {
  const state = refusing(0, code)
  const { folder } = state
  const place = join(folder, 'file')
  const again = async (work: () => unknown) => {
    ;[state.left, state.asked] = [2, 0]
    await work()
    expect(state.asked).toBeGreaterThan(2)
  }
  await again(() => writeFileAtomic(place, 'one'))
  await again(() => writeWhole(place, ['two']))
  expect(fs.readFileSync(place, 'utf8')).toBe('two')
  const fill = async (dir: string) => fs.writeFileSync(join(dir, 'in'), 'it')
  await again(() => writeFolderWhole(join(folder, 'dir'), fill, {}))
  await again(() => writeFolderWhole(join(folder, 'dir'), fill, { replace: true }))
  await again(() => pointAt(join(folder, 'link'), 'dir'))
  expect(fs.readdirSync(folder).toSorted()).toEqual(['dir', 'file', 'link'])
})

test.skipIf(!canLink)('a link to a folder, which Windows replaces by no rename, is made anew', () => {
  const { folder } = refusing(0, 'EPERM')
  const link = join(folder, 'best')
  const plain = fs.renameSync
  fs.renameSync = (from, to) => {
    if (fs.lstatSync(to, { throwIfNoEntry: false })?.isSymbolicLink()) throw Object.assign(new Error('EPERM'), { code: 'EPERM' })
    plain(from, to)
  }
  syncBuiltinESMExports()
  for (const step of ['step_1', 'step_2']) {
    pointAt(link, step)
    expect(fs.readlinkSync(link)).toBe(step)
  }
})

test('what stays refused is an error after two seconds; where it is no matter of a moment, at once', async () => {
  const state = refusing(Infinity, 'EPERM')
  const [from, to] = [join(state.folder, 'a'), join(state.folder, 'b')]
  await expect(moveTo(from, to)).rejects.toThrow('EPERM: refused')
  const tries = state.asked
  expect(tries).toBeGreaterThan(3)
  expect(() => moveToSync(from, to)).toThrow('EPERM: refused')
  expect(state.asked).toBe(2 * tries)
})

test.each([
  ['ENOSPC', 'win32'],
  ['EPERM', 'linux'],
])('%s on %s is an error at once', async (code, system) => {
  const state = refusing(Infinity, code, system)
  await expect(moveTo('a', 'b')).rejects.toThrow(`${code}: refused`)
  expect(() => moveToSync('a', 'b')).toThrow(`${code}: refused`)
  expect(state.asked).toBe(2)
})
