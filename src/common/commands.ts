/** Commands as they are printed for the user to copy: `node cli.js ...` in a checkout, by the package's bin and folder for the npm package. */
import { dirname, join, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'

/** Where package.json, cli.js and configs/ lie: of the checkout, or of the installed package. */
export const packageRoot = join(dirname(fileURLToPath(import.meta.url)), '../..')

/** True in a checkout (TypeScript runs as it is), false in the npm package. */
export const isCheckout = import.meta.url.endsWith('.ts')

export const CLI = isCheckout ? 'node cli.js' : 'npx dawn-rl'
export const TRAIN = isCheckout ? 'node train.js' : 'npx dawn-rl train'
/** What stands before a config file. PowerShell takes it in quotes alone, for no word of its own begins with it; cmd and bash take it so, too. */
export const AT = process.platform === 'win32' ? '"@"' : '@'
/** With slashes, as bash takes backslashes for something else. */
export const SCRIPTS = isCheckout ? 'scripts' : join(relative(process.cwd(), packageRoot), 'scripts').replaceAll(sep, '/')
