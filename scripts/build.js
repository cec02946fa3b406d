// The npm package's JavaScript, for `prepack`: Node strips no types under node_modules, so dist/ holds src/ as JavaScript with its
// type declarations, and every file of src/ that is not TypeScript (the .wgsl above all) at the same place. The bundled environments
// get their JavaScript beside them, where src/environments/load.ts looks for it; `--clean` (`postpack`) takes that away again.
// Types are checked by `npm run typecheck`, not here.
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const dist = join(root, 'dist')
const bundled = join(root, 'environments')
for (const file of existsSync(bundled) ? readdirSync(bundled) : []) {
  if (file.endsWith('.js') && existsSync(join(bundled, file.replace(/js$/, 'ts')))) rmSync(join(bundled, file))
}
if (process.argv.includes('--clean')) process.exit(0)

rmSync(dist, { recursive: true, force: true })
const compiler = join(root, 'node_modules/typescript/bin/tsc')
const tsc = spawnSync(process.execPath, [compiler, '-p', 'tsconfig.build.json'], { cwd: root, stdio: 'inherit' })
if (tsc.status !== 0) process.exit(tsc.status ?? 1)

const emitted = join(dist, 'emitted')
for (const entry of readdirSync(join(emitted, 'src'))) renameSync(join(emitted, 'src', entry), join(dist, entry))
cpSync(join(root, 'src'), dist, { recursive: true, filter: (path) => statSync(path).isDirectory() || !path.endsWith('.ts') })
if (existsSync(join(emitted, 'environments'))) {
  for (const file of readdirSync(join(emitted, 'environments')).filter((name) => name.endsWith('.js'))) {
    const code = readFileSync(join(emitted, 'environments', file), 'utf8')
    writeFileSync(join(bundled, file), code.replaceAll(/(['"])\.\.\/src\//g, '$1../dist/'))
  }
}
rmSync(emitted, { recursive: true })
