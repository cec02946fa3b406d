/** Makes the renames of a command that a test starts behave as on Windows: a folder cannot be renamed while a file in it is open. */
import { existsSync } from 'node:fs'

const renames = `
  import { readdirSync, readlinkSync } from 'node:fs'
  import files from 'node:fs/promises'
  import { syncBuiltinESMExports } from 'node:module'
  const { rename } = files
  const link = (fd) => { try { return readlinkSync('/proc/self/fd/' + fd) } catch { return '' } }
  files.rename = async (from, to) => {
    const open = readdirSync('/proc/self/fd').map(link).find((path) => path.startsWith(from + '/'))
    if (open) throw new Error('open as its folder is renamed: ' + open)
    return await rename(from, to)
  }
  syncBuiltinESMExports()`

/** Environment variables for the command. Empty on systems on which a process cannot list its open files. */
export const renamesAsWindows: NodeJS.ProcessEnv = existsSync('/proc/self/fd')
  ? { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(renames)}` }
  : {}
