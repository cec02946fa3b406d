import { execFileSync, spawnSync } from 'node:child_process'
import {
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { writeFolderWhole } from '../../src/model/files/files.ts'
import { canLink } from '../windows.ts'
import { newFolder } from './helpers.ts'

test('a folder that was to be replaced is there as it was where the new one cannot take its place', async () => {
  const root = newFolder()
  const dir = join(root, 'model')
  mkdirSync(dir)
  writeFileSync(join(dir, 'a.txt'), 'kept')
  const gone = (aside: string) => Promise.resolve(rmSync(aside, { recursive: true }))
  await expect(writeFolderWhole(dir, gone, { replace: true })).rejects.toThrow('ENOENT')
  expect([readdirSync(root), readdirSync(dir)]).toEqual([['model'], ['a.txt']])
})

test('a folder that another process has written meanwhile stays, and this is said', async () => {
  const root = newFolder()
  const dir = join(root, 'model')
  const late = (aside: string) => {
    writeFileSync(join(aside, 'mine.txt'), '')
    mkdirSync(dir)
    return Promise.resolve(writeFileSync(join(dir, 'theirs.txt'), ''))
  }
  await expect(writeFolderWhole(dir, late, {})).rejects.toThrow(
    `${dir} has been written by another process meanwhile. Remove it or name another folder.`,
  )
  expect([readdirSync(root), readdirSync(dir)]).toEqual([['model'], ['theirs.txt']])
})

test.skipIf(!canLink)('of a link to a folder, the folder is replaced, on the disk where it is, and the link stays', async () => {
  const root = newFolder()
  const [disk, here] = ['disk', 'here'].map((name) => join(root, name))
  for (const folder of [here, join(disk, 'model')]) mkdirSync(folder, { recursive: true })
  writeFileSync(join(disk, 'model', 'a.txt'), '')
  symlinkSync('../disk/model', join(here, 'model'))
  const fill = (aside: string) => Promise.resolve(writeFileSync(join(aside, 'b.txt'), ''))
  await writeFolderWhole(join(here, 'model'), fill, { replace: true })
  expect(lstatSync(join(here, 'model')).isSymbolicLink()).toBe(true)
  expect([readdirSync(here), readdirSync(disk), readdirSync(join(disk, 'model'))]).toEqual([['model'], ['model'], ['b.txt']])
})

test('a folder is replaced where a process of the same number, as in a container each is, was killed as it did so', async () => {
  const root = newFolder()
  const [dir, old] = ['model', `model.old-${process.pid}`].map((name) => join(root, name))
  for (const folder of [dir, old]) {
    mkdirSync(folder)
    writeFileSync(join(folder, 'a.txt'), '')
  }
  await writeFolderWhole(dir, (aside) => Promise.resolve(writeFileSync(join(aside, 'b.txt'), '')), { replace: true })
  expect([readdirSync(root), readdirSync(dir)]).toEqual([['model'], ['b.txt']])
})

test('a file that is to be written where the working directory was deleted is an error, not a wait without end', () => {
  const cwd = mkdtempSync(join(tmpdir(), 'dawn-rl-gone-'))
  const files = join(import.meta.dirname, '../../src/model/files/files.ts')
  const code = `
    const { writeWhole } = await import(${JSON.stringify(files)})
    ;(await import('node:fs')).rmdirSync(process.cwd())
    console.log(await writeWhole('outputs/run/a.txt', ['x']).catch((error) => error.code ?? String(error)))`
  const said = execFileSync(process.execPath, ['--input-type=module', '-e', code], { cwd, encoding: 'utf8', timeout: 60_000 })
  expect(said).toMatch(/ENOENT/)
  rmSync(cwd, { recursive: true, force: true })
})

test('what a killed process left of a folder goes with the next one, and what it was about to replace is back', async () => {
  const parent = mkdtempSync(join(tmpdir(), 'dawn-rl-left-'))
  const dir = join(parent, 'model')
  const files = join(import.meta.dirname, '../../src/model/files/files.ts')
  const code = `
    const { writeFolderWhole } = await import(${JSON.stringify(files)})
    await writeFolderWhole(${JSON.stringify(dir)}, async (aside) => {
      ;(await import('node:fs')).writeFileSync(aside + '/half', '')
      process.kill(process.pid, 'SIGKILL')
    }, {})`
  const { pid, signal } = spawnSync(process.execPath, ['--input-type=module', '-e', code], { timeout: 60_000 })
  expect(signal).toBe('SIGKILL')
  expect(readdirSync(parent)).toEqual([`model.partial-${pid}`])
  // Another's, and those of processes that are alive.
  const others = ['model-b.partial-1', 'model.partial-1', `other.old-${pid}`]
  for (const name of others) mkdirSync(join(parent, name))
  await writeFolderWhole(dir, async (aside) => writeFileSync(join(aside, 'first'), ''), {})
  expect(readdirSync(parent).toSorted()).toEqual(['model', ...others].toSorted())

  // Killed between the two renames; in a container the next process may have the same id.
  for (const left of [pid, process.pid]) {
    renameSync(dir, `${dir}.old-${left}`)
    const failing = writeFolderWhole(dir, () => Promise.reject(new Error('no room')), { replace: true })
    await expect(failing).rejects.toThrow('no room')
    expect(existsSync(join(dir, 'first'))).toBe(true)
    expect(readdirSync(parent).toSorted()).toEqual(['model', ...others].toSorted())
  }
  mkdirSync(join(parent, `model.old-${process.pid}`, 'rest'), { recursive: true })
  await writeFolderWhole(dir, async (aside) => writeFileSync(join(aside, 'second'), ''), { replace: true })
  expect(readdirSync(dir)).toEqual(['second'])
  expect(readdirSync(parent).toSorted()).toEqual(['model', ...others].toSorted())
  rmSync(parent, { recursive: true })
})
