/** Code that holds the event loop is told of by somebody else. */
import { execFile, spawnSync } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

const watch = new URL('../../src/cli/stuck.ts', import.meta.url).href

test('a loop without a pause: said while it runs, and that it is over; nothing keeps the process', () => {
  const program = `
    const { watchLoop } = await import('${watch}')
    watchLoop(400)
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
    await pause(600)
    const end = performance.now() + 2500
    while (performance.now() < end);
    await pause(600)`
  const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' })
  expect(status, stderr).toBe(0)
  const lines = stderr.trim().split('\n')
  expect(lines.length).toBeGreaterThan(1)
  for (const line of lines.slice(0, -1))
    expect(line).toMatch(/^the run has been blocked for [0-3] s by code that computes without a pause, such as .*`kill -9 \d+`/)
  expect(lines.at(-1)).toBe('the run goes on.')
})

test.skipIf(process.platform === 'win32')('a process that was stopped and goes on is not held up', async () => {
  // Stopped for longer than its limit, at several moments, and busy for a little when it goes on, as a run is. The limit leaves it seconds in which other tests have the cores.
  const program = (moment: number) => `
    const { watchLoop } = await import('${watch}')
    const { spawn } = await import('node:child_process')
    const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))
    watchLoop(3600)
    await pause(${moment})
    spawn('/bin/sh', ['-c', 'sleep 4; kill -CONT ' + process.pid], { stdio: 'ignore', detached: true }).unref()
    process.kill(process.pid, 'SIGSTOP')
    const end = performance.now() + 300
    while (performance.now() < end);
    await pause(1000)`
  const run = promisify(execFile)
  const all = await Promise.all(
    [400, 900, 1400, 1900].map((moment) => run(process.execPath, ['--input-type=module', '-e', program(moment)])),
  )
  expect(all.map(({ stderr }) => stderr)).toEqual(['', '', '', ''])
})
