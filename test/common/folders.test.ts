import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { makeFolder } from '../../src/common/folders.ts'
import { canLink, isWindows } from '../windows.ts'

test('a folder is made with those above it; what cannot be one is an error, never an endless try', () => {
  const base = mkdtempSync(join(tmpdir(), 'dawn-rl-folders-'))
  onTestFinished(() => rmSync(base, { recursive: true }))
  const [a, b] = [join(base, 'a'), join(base, 'a', 'b')]
  expect(makeFolder(b)).toEqual([a, b])
  expect(makeFolder(b)).toEqual([])
  expect(makeFolder(join(a, 'c'))).toEqual([join(a, 'c')])
  const file = join(base, 'file')
  writeFileSync(file, '')
  expect(() => makeFolder(file)).toThrow('EEXIST: file already exists')
  expect(() => makeFolder(join(file, 'below'))).toThrow(isWindows ? 'ENOENT' : 'ENOTDIR: not a directory')
  if (canLink) {
    symlinkSync(join(base, 'nowhere'), join(base, 'link'))
    expect(() => makeFolder(join(base, 'link'))).toThrow('EEXIST: file already exists')
  }
  if (process.platform === 'linux')
    expect(() => makeFolder('/proc/none/below')).toThrow("ENOENT: no such file or directory, mkdir '/proc/none'")
})
