/** /metrics in Prometheus' text format, under vLLM's names: the engine's counters, and request times. */
import type { EngineStats } from '../engine.ts'

const seconds = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300]

class Histogram {
  readonly #counts = seconds.map(() => 0)
  #sum = 0
  #count = 0

  observe(value: number): void {
    this.#sum += value
    this.#count++
    seconds.forEach((bound, i) => (this.#counts[i] += Number(value <= bound)))
  }

  lines(name: string, labels: string): string[] {
    return [
      ...seconds.map((bound, i) => `${name}_bucket{${labels},le="${bound}"} ${this.#counts[i]}`),
      `${name}_bucket{${labels},le="+Inf"} ${this.#count}`,
      `${name}_sum{${labels}} ${this.#sum}`,
      `${name}_count{${labels}} ${this.#count}`,
    ]
  }
}

/** Escapes a label's value: backslash, quote and line end. */
const quote = (text: string) => `"${text.replaceAll('\\', '\\\\').replaceAll('"', '\\"').replaceAll('\n', '\\n')}"`

export class ServerMetrics {
  readonly #finished = new Map<string, number>()
  readonly #answers = new Map<string, number>()
  readonly #firstToken = new Histogram()
  readonly #betweenTokens = new Histogram()
  readonly #whole = new Histogram()
  /** Requests in progress that use the model. */
  load = 0

  firstToken(ms: number): void {
    this.#firstToken.observe(ms / 1000)
  }

  nextToken(ms: number): void {
    this.#betweenTokens.observe(ms / 1000)
  }

  finished(reason: string, ms: number): void {
    this.#finished.set(reason, (this.#finished.get(reason) ?? 0) + 1)
    this.#whole.observe(ms / 1000)
  }

  answered(route: string, status: number): void {
    const key = `handler=${quote(route)},status="${status}"`
    this.#answers.set(key, (this.#answers.get(key) ?? 0) + 1)
  }

  /** The page's text. */
  text(stats: EngineStats, model: string, adapters: { names: readonly string[]; most: number | undefined }): string {
    const labels = `engine="0",model_name=${quote(model)}`
    const out: string[] = []
    const put = (name: string, type: string, help: string, lines: string[]) =>
      out.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...lines)
    const one = (name: string, type: string, help: string, value: number) =>
      put(name, type, help, [`${name}{${labels}} ${value}`])
    const counted = (name: string, help: string, values: string[]) =>
      put(
        name,
        'counter',
        help,
        values.map((value) => name + value),
      )
    one('vllm:num_requests_running', 'gauge', 'Completions that run.', stats.running)
    one('vllm:num_requests_waiting', 'gauge', 'Completions that wait.', stats.waiting)
    one(
      'vllm:kv_cache_usage_perc',
      'gauge',
      'Share of the KV cache that is in use, 0 to 1.',
      stats.kvRows > 0 ? stats.kvRowsUsed / stats.kvRows : 0,
    )
    put('vllm:cache_config_info', 'gauge', 'Size of the KV cache in tokens.', [
      `vllm:cache_config_info{engine="0",block_size="1",num_gpu_blocks="${stats.kvRows}"} 1`,
    ])
    const loaded = adapters.names.join(',')
    const most = adapters.most === undefined ? '' : `max_lora="${adapters.most}",`
    put('vllm:lora_requests_info', 'gauge', 'Adapters that are loaded.', [
      `vllm:lora_requests_info{${most}running_lora_adapters=${quote(loaded)},waiting_lora_adapters=""} 1`,
    ])
    const prompts = stats.promptTokens
    one('vllm:prompt_tokens_total', 'counter', 'Tokens of prompts.', prompts)
    one('vllm:generation_tokens_total', 'counter', 'Tokens that were sampled.', stats.tokensGenerated)
    one('vllm:prefix_cache_queries_total', 'counter', 'Tokens of prompts that were looked up in the cache.', prompts)
    one('vllm:prefix_cache_hits_total', 'counter', 'Tokens of prompts that were found there.', stats.sharedPromptTokens)
    one('vllm:num_preemptions_total', 'counter', 'Completions that were put back for lack of room.', stats.preemptions)
    const ended = [...this.#finished].map(([reason, count]) => `{${labels},finished_reason=${quote(reason)}} ${count}`)
    counted('vllm:request_success_total', 'Completions by what ended them.', ended)
    const histogram = (name: string, help: string, values: Histogram) => put(name, 'histogram', help, values.lines(name, labels))
    histogram('vllm:time_to_first_token_seconds', 'From the request to its first token.', this.#firstToken)
    histogram('vllm:inter_token_latency_seconds', 'From a token to the next.', this.#betweenTokens)
    histogram('vllm:e2e_request_latency_seconds', 'From the request to its last token.', this.#whole)
    const answers = [...this.#answers].map(([key, count]) => `{${key}} ${count}`)
    counted('http_requests_total', 'Answers by route and status.', answers)
    one('dawn_rl:weights_version', 'gauge', 'Version of the weights that the next token is sampled with.', stats.version)
    one('dawn_rl:server_load', 'gauge', 'Requests under way that give the model work.', this.load)
    return `${out.join('\n')}\n`
  }
}
