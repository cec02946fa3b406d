/** A disk without room: the kernel's own full device beside a file. */
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { isDeadOutput, isFullDisk, pauseMs, whenThereIsRoom } from '../../src/common/faults.ts'
import { appendRows } from '../../src/monitor/files.ts'

const hasFull = process.platform === 'linux'

test.skipIf(!hasFull)('rows go to all files or to none, and again when there is room', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'dawn-rl-full-'))
  const path = join(dir, 'rows.jsonl')
  writeFileSync(path, '{"n":0}\n')
  const [rows, full] = [openSync(path, 'a'), openSync('/dev/full', 'a')]
  onTestFinished(() => {
    closeSync(rows)
    closeSync(full)
    rmSync(dir, { recursive: true })
  })
  let tries = 0
  const write = () => {
    // The second file has room at the third try.
    const second = ++tries < 3 ? full : rows
    appendRows([
      { fd: rows, rows: [{ n: 1 }, { n: 2 }] },
      { fd: second, rows: [{ n: 3 }] },
    ])
  }
  const said: string[] = []
  await whenThereIsRoom('the rows', write, (line) => said.push(line), { firstMs: 1, longestMs: 2 })
  expect(readFileSync(path, 'utf8')).toBe('{"n":0}\n{"n":1}\n{"n":2}\n{"n":3}\n')
  expect(said.map((line) => line.split(':')[0])).toEqual([
    'the disk is full',
    'the disk is full',
    'there is room on the disk again for the rows',
  ])
})

test('a full disk is told of the first six times and then every tenth; where there is room nothing is said', async () => {
  const full = Object.assign(new Error('no space left on device'), { code: 'ENOSPC' })
  const said: string[] = []
  let tries = 0
  const work = () => (++tries <= 11 ? Promise.reject(full) : tries)
  expect(await whenThereIsRoom('it', work, (line) => said.push(line), { firstMs: 1, longestMs: 1 })).toBe(12)
  expect(said).toHaveLength(6 + 1 + 1)
  expect(await whenThereIsRoom('it', () => 1, (line) => said.push(line))).toBe(1) // prettier-ignore
  expect(said).toHaveLength(8)
  expect([full, Object.assign(new Error(), { code: 'EPIPE' }), new Error()].map(isDeadOutput)).toEqual([true, true, false])
})

test('what is no full disk is thrown', async () => {
  const error = Object.assign(new Error('EACCES: permission denied'), { code: 'EACCES' })
  await expect(whenThereIsRoom('it', () => Promise.reject(error), () => {})).rejects.toBe(error) // prettier-ignore
  expect(isFullDisk(error)).toBe(false)
  expect([0, 1, 2, 3, 4].map((n) => pauseMs(n, { firstMs: 1000, longestMs: 5000 }))).toEqual([1000, 2000, 4000, 5000, 5000])
})
