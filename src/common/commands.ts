/** Commands as they are printed for the user to copy: `node cli.js ...` in a checkout, the package's executable and folder if installed from npm. */
import { dirname, join, relative, sep } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The folder of package.json, cli.js and configs/: the checkout, or the installed package. */
export const packageRoot = join(dirname(fileURLToPath(import.meta.url)), '../..')

/** True in a checkout, where TypeScript is run directly. False in the npm package. */
export const isCheckout = import.meta.url.endsWith('.ts')

export const CLI = isCheckout ? 'node cli.js' : 'npx dawn-rl'
export const TRAIN = isCheckout ? 'node train.js' : 'npx dawn-rl train'
/** The prefix of a config file on the command line. PowerShell accepts an @ at the start of a word only in quotes, and cmd and bash accept that too. */
export const AT = process.platform === 'win32' ? '"@"' : '@'
/** With forward slashes, because bash treats backslashes as escapes. */
export const SCRIPTS = isCheckout ? 'scripts' : join(relative(process.cwd(), packageRoot), 'scripts').replaceAll(sep, '/')
