/** What tests need so that they hold on Windows too. On other systems it changes nothing. */
import { lstatSync, mkdtempSync, readFileSync, readlinkSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { test } from 'vitest'

export const isWindows = process.platform === 'win32'

/** Whether this user may create symbolic links. On Windows this takes an administrator or developer mode. */
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

/** What `pointAt` has pointed at: the link's target or, without links, the content of the text file. */
export const pointed = (link: string): string =>
  lstatSync(link).isSymbolicLink() ? readlinkSync(link) : readFileSync(link, 'utf8').trimEnd()

/** The path of the file or folder that `link` points at. */
export const behind = (link: string): string => join(dirname(link), pointed(link))

/**
 * A text of ours as other systems would have it: with slashes in paths, and without quotes around a command's @ and around words that consist of a
 * path. Not for texts with other backslashes.
 */
export function asPosix(text: string): string {
  if (!isWindows) return text
  return text
    .replace(/"([^\s"]*\\[^\s"]*|@)"/g, '$1')
    .replaceAll('\\', '/')
    .replaceAll('\r\n', '\n')
}

type Body = () => void | Promise<void>

/** A test of something that Windows does not have, which its title then says: `posixOnly('signals')('ends on SIGTERM', ...)`. */
export const posixOnly = (what: string) => (title: string, body: Body) =>
  isWindows ? test.skip(`${title} (Windows has no ${what})`, body) : test(title, body)
