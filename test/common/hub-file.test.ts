import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { fetchHubFile } from '../../src/common/hub-file.ts'

test("a hub's list says nothing that lies outside the snapshot's folder", async () => {
  const repo = mkdtempSync(join(tmpdir(), 'dawn-rl-hub-file-'))
  onTestFinished(() => rmSync(repo, { recursive: true }))
  const fetched = (path: string, oid: string) =>
    fetchHubFile(repo, 'main', { path, oid, size: 1 }, () => Promise.resolve(new Blob(['x'])))
  await expect(fetched('../../train.jsonl', 'a1')).rejects.toThrow(
    'has the path "../../train.jsonl", which is outside its folder',
  )
  await expect(fetched('train.jsonl', '../../a1')).rejects.toThrow('has no hash for train.jsonl')
  expect(readdirSync(repo)).toEqual([])
  expect(await fetched('main/train.jsonl', 'a1')).toBe(join(repo, 'snapshots/main/main/train.jsonl'))
  expect(readdirSync(join(repo, 'blobs'))).toEqual(['a1'])
  const gone = fetchHubFile(repo, 'main', { path: 'gone.jsonl', oid: 'b2', size: 1 }, () => Promise.resolve(null))
  await expect(gone).rejects.toThrow('it has no gone.jsonl, although its list of files names it')
})
