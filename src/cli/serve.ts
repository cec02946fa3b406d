/** `serve`: the OpenAI-compatible server over the embedded engine. This file declares the options; serve-setup.ts builds the server. */
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
    .option('--host <address>', 'the address to listen on; one that other machines can reach needs a key', '127.0.0.1')
    .option('--port <number>', 'the port to listen on; 0: any free one', whole(0, 65535), 8000)
    .option(
      '--api-key <key>',
      'a key that requests must carry; may be given several times (DAWN_RL_API_KEY is safer: other users can see the command line)',
      listed,
    )
    .option(
      '--allowed-origins <origin>',
      'the origin of web pages that may send requests, or *; may be given several times',
      listed,
    )
    .option('--adapter-root <dir>', 'the folder below which requests may load adapters and weights (default: they may load none)')
    .addOption(
      new Option(
        '--dev-mode',
        'offer routes that stop the engine and change weights: /pause, /collective_rpc, ... (default: only on loopback)',
      ),
    )
    .option('--no-dev-mode', 'leave these routes out')
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
      'the most tokens that a step computes, prompt tokens included (default: max-num-seqs + 256)',
      whole(1, 65536),
    )
    .option(
      '--max-model-len <tokens>',
      "tokens of prompt and completion together (default: the model's limit, or what the KV cache holds if that is less)",
      whole(2, 2 ** 24),
    )
    .option(
      '--kv-cache-bytes <bytes>',
      'size of the KV cache, with K, M or G (default: enough for max-num-seqs sequences of full length, but at most half of the free GPU memory; at most 1G on a CPU, or where the free memory is unknown)',
      bytes,
    )
    .addOption(
      new Option('--kv-cache-dtype <dtype>', 'f16 takes half the memory of f32').choices(['auto', 'f32', 'f16']).default('auto'),
    )
    .option('--max-loras <count>', 'adapters that are loaded at the same time', whole(0, 256), 4)
    .option('--max-lora-rank <rank>', 'the largest rank of an adapter', whole(1, 512), 16)
    .option('--no-enable-prefix-caching', 'compute each prompt in full, even if it begins like an earlier one')
    .option('--matrix-units', "compute large matrix products on the GPU's matrix units, in f16")
    .addOption(quantizationOption())
}

function withAnswers(command: Command): void {
  command
    .addOption(
      new Option(
        '--logprobs-mode <mode>',
        'the logits from which log-probabilities are computed. raw: those of the model; processed: those that are sampled from, after penalties, temperature, filters and formats; policy: after temperature only',
      )
        .choices(['raw_logprobs', 'processed_logprobs', 'policy_logprobs'])
        .default('raw_logprobs'),
    )
    .option('--max-logprobs <count>', 'how many of the most likely tokens a request may ask for', whole(0, 20), 20)
    .option('--chat-template <file>', "a Jinja template in place of the model's")
    .option(
      '--default-chat-template-kwargs <json>',
      'variables for the chat template, unless a request sets them: {"enable_thinking": false}',
    )
    .option(
      '--generation-config <where>',
      'where sampling defaults come from: auto (the model), vllm (none), or a folder',
      'auto',
    )
    .option(
      '--tool-call-parser <name>',
      'how the model writes tool calls: hermes, llama3_json, json, none, or auto, by its chat template',
      'auto',
    )
    .option(
      '--reasoning-parser <name>',
      'think: the text in <think> is returned apart from the answer; none; or auto, by the chat template',
      'auto',
    )
}

function withLimits(command: Command): void {
  command
    .option(
      '--max-queue <count>',
      'how many completions may wait while others run; further ones get status 429',
      whole(0, 1_000_000),
      1024,
    )
    .option('--max-body-bytes <bytes>', 'the largest body of a request, with K, M or G', bytes, 32 * 2 ** 20)
    .option('--body-seconds <seconds>', 'how long a body may take to arrive', whole(1, 3600), 30)
    .option('--max-connections <count>', 'connections that may be open at once', whole(1, 65535), 1024)
    .option(
      '--drain-seconds <seconds>',
      'how long running requests may take to end after SIGTERM or Ctrl-C',
      whole(0, 86_400),
      30,
    )
    .addOption(
      new Option('--log-level <level>', 'what is logged, as JSON lines on standard error')
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
  // Until it listens, a signal ends the process at once (Node's default): nobody waits for an answer yet.
  const server = await openServer(options)
  const stop = stopOnSignal(`running requests get ${options.drainSeconds} s to finish, new ones are refused`)
  try {
    const lost = await Promise.race([server.lost, once(stop.signal, 'abort').then(() => undefined)])
    // On a lost device running requests fail at once.
    await server.close(options.drainSeconds)
    if (lost) throw new Error(`${lost.message}. The server has stopped, as it can no longer answer: start it again.`)
  } finally {
    stop.release()
  }
}
