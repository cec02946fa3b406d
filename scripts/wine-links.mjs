// Wine says that it made a symbolic link and makes none; Windows without developer mode refuses: EPERM.
import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
const eperm = (t, l) =>
  Object.assign(new Error(`EPERM: operation not permitted, symlink '${t}' -> '${l}'`), { code: 'EPERM', syscall: 'symlink' })
fs.symlinkSync = (t, l) => {
  throw eperm(t, l)
}
fs.symlink = (t, l, ty, cb) => (typeof ty === 'function' ? ty : cb)(eperm(t, l))
fs.promises.symlink = async (t, l) => {
  throw eperm(t, l)
}
syncBuiltinESMExports()
