/** `env`: creates an environment of the user's own, and checks one before a run. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { Command } from 'commander'
import { packageRoot } from '../common/commands.ts'
import { printable } from '../monitor/format.ts'
import type { CheckOptions } from './env-check.ts'
import { ENV_KINDS } from './env-new.ts'

const TINY = 'models/tiny'

export function register(program: Command): void {
  const env = program.command('env').description('Create an environment of your own, or check one before a run.')
  env
    .command('new')
    .description('Write NAME.ts, a small environment that runs as it is, into this folder.')
    .argument('<name>', 'letters, digits, - and _')
    .option('--kind <kind>', `${ENV_KINDS.join(', ')}`, 'single')
    .action(async (name: string, options: { kind: string }) => {
      const { newEnvironment } = await import('./env-new.ts')
      console.log(newEnvironment(name, options.kind, process.cwd()))
    })
  env
    .command('check')
    .description(
      'Show rows, the first prompt as the model sees it, and the rewards of a few answers; exit code 2 if something is wrong.',
    )
    .argument('<environment>', 'a bundled id, a path, an npm package, or an environment in Python')
    .option('--args <json>', 'arguments of the environment, as JSON', '{}')
    .option(
      '--python-path <file>',
      'the Python interpreter that has an environment written in Python (default: the one made by scripts/setup-verifiers.sh)',
    )
    .option('-m, --model <model>', 'folder, hub id or .gguf file whose chat template and tokenizer are used', TINY)
    .option('--chat-template-kwargs <json>', 'variables for the chat template, as in [trainer.args] of a config')
    .action(async (id: string, options: CheckOptions) => {
      const { checkEnvironment } = await import('./env-check.ts')
      // Outside the checkout the default is the model that came with dawn-rl; its name must not be taken for a hub id.
      const model = options.model === TINY && !existsSync(TINY) ? join(packageRoot, TINY) : options.model
      await checkEnvironment(id, { ...options, model }, (line) => console.log(printable(line)))
    })
}
