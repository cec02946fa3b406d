/** Installed versions of this package and of its dependencies. */
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { packageRoot } from '../common/commands.ts'

/** The installed version of `name` ('dawn-rl' is this package); undefined where it is not installed. */
export function versionOf(name: string): string | undefined {
  const folder = name === 'dawn-rl' ? packageRoot : installedFolder(name)
  return folder && (JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { version: string }).version
}

/** The folder of an installed package: the nearest node_modules that has it, as Node looks it up. */
export function installedFolder(name: string): string | undefined {
  for (let folder = packageRoot; ; folder = dirname(folder)) {
    const candidate = join(folder, 'node_modules', name)
    if (existsSync(join(candidate, 'package.json'))) return candidate
    if (folder === dirname(folder)) return undefined
  }
}
