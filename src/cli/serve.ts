/** `serve`: the OpenAI-compatible server over the embedded engine. This file is its words; serve-setup.ts builds it. */
import { once } from 'node:events'
import { InvalidArgumentError, Option, type Command } from 'commander'
import { quantizationOption, whole } from './options.ts'
import type { ServeOptions } from './serve-setup.ts'
import { outliveReaders, stopOnSignal } from './stop.ts'

/** Adds the verb to the program. Flags are vLLM's where it has them. */
export function register(program: Command): void {
  const command = program
    .command('serve')
    .description(
      'Serve a model over HTTP, as OpenAI and vLLM do: completions, chat, responses, adapters. docs/api.md lists the routes.',
    )
    .requiredOption('--model <ref>', 'a Hugging Face folder, a .gguf file or a hub id')
    .option(
      '--served-model-name <name>',
      'a name of the model in requests; may be given several times (default: --model)',
      listed,
    )
    .option('--adapter <name=dir>', 'a PEFT adapter under a name; may be given several times', listed)
    .option('--host <address>', "the address to listen on; any but this machine's own needs a key", '127.0.0.1')
    .option('--port <number>', '0: a free one', whole(0, 65535), 8000)
    .option(
      '--api-key <key>',
      'a key that requests must carry; may be given several times (better in DAWN_RL_API_KEY: others see the command line)',
      listed,
    )
    .option('--allowed-origins <origin>', "a web page's origin that may ask, or *; may be given several times", listed)
    .option('--adapter-root <dir>', 'adapters and weights are loaded from below it at run time; default: not at all')
    .addOption(
      new Option(
        '--dev-mode',
        'routes that stop the engine and change weights: /pause, /collective_rpc, ... (default: on loopback)',
      ),
    )
    .option('--no-dev-mode', 'without them')
  withEngine(command)
  withAnswers(command)
  withLimits(command)
  command.action(serve)
}

function withEngine(command: Command): void {
  command
    .option('--max-num-seqs <count>', 'completions that are decoded together', whole(1, 4096), 32)
    .option(
      '--max-num-batched-tokens <count>',
      'tokens that a step computes, of prompts too (default: max-num-seqs + 256)',
      whole(1, 65536),
    )
    .option(
      '--max-model-len <tokens>',
      "prompt and completion together (default: the model's own, as far as the KV cache holds it)",
      whole(2, 2 ** 24),
    )
    .option(
      '--kv-cache-bytes <bytes>',
      'memory of the KV cache, with K, M or G; default: what max-num-seqs whole sequences need, at most half of the memory that the GPU has free (on a CPU, or where it is not known, 1G)',
      bytes,
    )
    .addOption(new Option('--kv-cache-dtype <dtype>', 'f16 takes half the room').choices(['auto', 'f32', 'f16']).default('auto'))
    .option('--max-loras <count>', 'adapters that are loaded at the same time', whole(0, 256), 4)
    .option('--max-lora-rank <rank>', 'the largest rank of one', whole(1, 512), 16)
    .option('--no-enable-prefix-caching', 'prompts that begin alike are computed anew')
    .option('--matrix-units', "large products on the GPU's matrix units, in f16")
    .addOption(quantizationOption())
}

function withAnswers(command: Command): void {
  command
    .addOption(
      new Option(
        '--logprobs-mode <mode>',
        'raw: of the logits as they are; processed: of what was drawn from; policy: at the temperature, before filters',
      )
        .choices(['raw_logprobs', 'processed_logprobs', 'policy_logprobs'])
        .default('raw_logprobs'),
    )
    .option('--max-logprobs <count>', 'the most likely tokens that a request may ask for', whole(0, 20), 20)
    .option('--chat-template <file>', "a Jinja template in place of the model's")
    .option(
      '--default-chat-template-kwargs <json>',
      'variables for the template, where a request gives none: {"enable_thinking": false}',
    )
    .option(
      '--generation-config <where>',
      'where defaults of sampling are from: auto (the model), vllm (none), or a folder',
      'auto',
    )
    .option(
      '--tool-call-parser <name>',
      'how the model writes calls: hermes, llama3_json, json, none, or auto, which looks at its template',
      'auto',
    )
    .option(
      '--reasoning-parser <name>',
      'think: what stands in <think> is told apart; none; or auto, which looks at the template',
      'auto',
    )
}

function withLimits(command: Command): void {
  command
    .option('--max-queue <count>', 'completions that may wait beside those that run; more get 429', whole(0, 1_000_000), 1024)
    .option('--max-body-bytes <bytes>', 'of a request, with K, M or G', bytes, 32 * 2 ** 20)
    .option('--body-seconds <seconds>', 'until a body is whole', whole(1, 3600), 30)
    .option('--max-connections <count>', 'that are open together', whole(1, 65535), 1024)
    .option('--drain-seconds <seconds>', 'that running requests get to end after SIGTERM or Ctrl-C', whole(0, 86_400), 30)
    .addOption(
      new Option('--log-level <level>', 'on standard error, a JSON line each')
        .choices(['debug', 'info', 'warn', 'error', 'silent'])
        .default('info'),
    )
}

const listed = (value: string, before: string[] | undefined): string[] => [...(before ?? []), value]

function bytes(text: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?$/i.exec(text) ?? []
  const value = Math.floor(Number(digits) * 1024 ** ' KMGT'.indexOf((unit || ' ').toUpperCase()))
  if (!(value > 0)) throw new InvalidArgumentError('It must be a number of bytes, such as 268435456 or 256M.')
  return value
}

async function serve(options: ServeOptions): Promise<void> {
  const { openServer } = await import('./serve-setup.ts')
  outliveReaders()
  // Until it listens a signal ends it at once, as by default: nobody waits for an answer.
  const server = await openServer(options)
  const stop = stopOnSignal(`requests that run get ${options.drainSeconds} s to end, new ones are refused`)
  try {
    const lost = await Promise.race([server.lost, once(stop.signal, 'abort').then(() => undefined)])
    // On a lost device those that run fail at once.
    await server.close(options.drainSeconds)
    if (lost) throw new Error(`${lost.message}. The server has ended, as it could answer nothing more: start it again.`)
  } finally {
    stop.release()
  }
}
