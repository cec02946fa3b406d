/** What tests need to hold on Windows, too. On other systems nothing here changes anything. */
import { lstatSync, mkdtempSync, readFileSync, readlinkSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'vitest'

export const isWindows = process.platform === 'win32'

/** Whether this user may make links: on Windows as an administrator, or in developer mode. */
export const canLink = !isWindows || mayLink()

function mayLink(): boolean {
  const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-links-'))
  try {
    symlinkSync('nowhere', join(folder, 'link'))
    return true
  } catch {
    return false
  } finally {
    rmSync(folder, { recursive: true })
  }
}

/** What `pointAt` has pointed at: the link's target or, without links, what the text file says. */
export const pointed = (link: string): string =>
  lstatSync(link).isSymbolicLink() ? readlinkSync(link) : readFileSync(link, 'utf8').trimEnd()

/** The file or folder behind it. */
export const behind = (link: string): string => join(dirname(link), pointed(link))

/**
 * A text of ours as another system would have it: slashes in paths, the @ of a command and words with nothing but a path as they are. Not for texts with
 * backslashes of their own.
 */
export function asPosix(text: string): string {
  if (!isWindows) return text
  return text
    .replace(/"([^\s"]*\\[^\s"]*|@)"/g, '$1')
    .replaceAll('\\', '/')
    .replaceAll('\r\n', '\n')
}

type Body = () => void | Promise<void>

/** A test of what Windows has not, which its title then says: `posixOnly('signals')('ends on SIGTERM', ...)`. */
export const posixOnly = (what: string) => (title: string, body: Body) =>
  isWindows ? test.skip(`${title} (Windows has no ${what})`, body) : test(title, body)
