/**
 * What the server of `node cli.js view` answers: one type for each endpoint. The page (page/*.js) relies on these names.
 *
 *   GET /api/runs                          RunSummary[]
 *   GET /api/runs/:id                      RunDetails
 *   GET /api/runs/:id/metrics?keys=&from=&points=      MetricsAnswer
 *   GET /api/runs/:id/rollouts?...         RolloutsAnswer (RolloutQuery)
 *   GET /api/runs/:id/rollouts/:step/:row  RolloutDetails
 *   GET /api/runs/:id/timeline?step=       TimelineAnswer
 *   GET /api/runs/:id/kernels              KernelsAnswer
 *   GET /api/compare?runs=a,b              CompareAnswer
 *   GET /api/glossary?keys=a,b             Record<string, GlossaryEntry> (without keys: every name of the table, patterns such as <env> included)
 *   GET /api/events?age=                   Server-Sent Events: ViewEvent as `data`, with a time as `id`, and a comment every 15 s; begins with
 *                                          the changes of the last `age` ms, or since the time in Last-Event-ID
 *
 * `:id` is the run's id through encodeURIComponent (slashes as %2F); in lists (`runs=`) each id is encoded before they are joined by commas.
 * Every error is { error: { message } } with a status of 4xx or 5xx.
 *
 *   GET /report/:id    report.html of a run (has.report)
 *   GET /              page/index.html; /NAME the other files of page/
 *   GET /vendor/...    preact.js preact-hooks.js htm.js htm-preact.js signals.js signals-core.js uplot.js uplot.css: for an import map in index.html
 *                      (inline; the policy allows inline scripts by their hash, and no style attributes or <style>: set styles through the DOM)
 * The key is in a cookie when the page loads; the page never sees it.
 */
import type { RolloutRow, Split } from '../rollout-writer.ts'

type RunStatus = 'running' | 'finished' | 'stopped' | 'killed'

/** A value of a configuration, at a dotted key. */
export type FlatValue = string | number | boolean | null

export interface RunSummary {
  /** The path below the outputs folder, with '/' as separator; the folder's name if the outputs folder is itself a run. */
  id: string
  name: string
  /** running: its lock is alive. finished: the last step is done. stopped: ended before that. killed: ended without releasing its lock. */
  status: RunStatus
  /** The last step in metrics.jsonl; 0 where none is done. */
  step: number
  /** null where the config does not say. */
  max_steps: number | null
  /** As the config names it: a path, a GGUF, a hub id. */
  model: string | null
  envs: string[]
  /** Seconds since 1970: of the first row (or the config file), and of the newest change. */
  started: number | null
  updated: number | null
  /** Training rewards; null before the first step. `points`: at most 40 values for a sparkline. */
  reward: { first: number | null; last: number | null; best: number | null; points: (number | null)[] } | null
  has: { metrics: boolean; rollouts: boolean; timeline: boolean; kernels: boolean; report: boolean }
}

/** A row of metrics.jsonl that has an evaluation: step, time and the keys eval/... */
export type EvalRow = Record<string, number | null> & { step: number }

export interface RunDetails {
  summary: RunSummary
  /** The text of config.toml. */
  config: string
  flat: Record<string, FlatValue>
  /** What its newest start recorded: versions of dawn-rl, Node and so on, the adapter, and the command. */
  versions?: Record<string, string>
  /** Uncommitted changes in the folder that it was started in. */
  gitDiff?: string
  evalRows: EvalRow[]
  /** Steps that have rollouts, ascending, and those that have a timeline. */
  rolloutSteps: number[]
  timelineSteps: number[]
}

export interface MetricsAnswer {
  /** All keys of the run, in the order in which they first appear. */
  keys: string[]
  /** Ascending; a step written twice (an evaluation after its row) is one entry. */
  steps: number[]
  /** The values of the requested keys (`time`, in seconds since 1970, may be one); null where a row has none. */
  series: Record<string, (number | null)[]>
  /** Rows of the file, before `from` and `points`. Ask again with from = the last step + 1. */
  rows: number
}

export interface GlossaryEntry {
  /** The key, short enough for an axis. */
  label: string
  unit: string
  /** How it is computed. */
  help: string
  /** What a healthy run shows, in words. */
  healthy?: string
  /** Its heading in the glossary. */
  group: string
  /** Bounds of the healthy range where the words name numbers; either may be missing. */
  range?: { min?: number; max?: number }
}

export interface RolloutQuery {
  /** A step alone; or `from` and `to`, inclusive. */
  step?: number
  from?: number
  to?: number
  split?: Split
  /** Of this environment; of a group, of all its members. */
  env?: string
  min_reward?: number
  max_reward?: number
  /** Text to find in prompt, completion or answer, ignoring case. */
  text?: string
  /** true: only failed ones; false: without them. */
  error?: boolean
  /** Of one group (as RolloutSummary.group). */
  group?: string
  /** Default: -step (newest first), and within a step the order of the file. A minus before the name reverses it. */
  sort?: 'step' | '-step' | 'reward' | '-reward' | 'tokens' | '-tokens' | 'advantage' | '-advantage'
  /** Default 100, at most 1000. */
  limit?: number
  offset?: number
}

export interface RolloutSummary {
  step: number
  /** Line of the step's file, from 0. `step` and `row` identify a rollout. */
  row: number
  split: Split
  env: string
  group: string
  index: number
  reward: number | null
  /** The mean where it differs from token to token; null: not trained on. */
  advantage: number | null
  /** Sampled tokens. */
  tokens: number
  turns: number
  truncated: boolean
  error: string | null
  /** At most 160 characters each. */
  preview: { question: string; answer: string }
}

export interface RolloutsAnswer {
  /** How many of the searched rollouts match. */
  total: number
  /** True: the search ended early, and some steps were not searched. `searchedFrom` is the oldest step that was. */
  truncated: boolean
  searchedFrom: number | null
  rows: RolloutSummary[]
}

/** prompt: before the first answer of a branch. sampled: by the policy. env, tool: between two answers. */
export type TokenKind = 'prompt' | 'sampled' | 'env' | 'tool'

export interface ViewToken {
  id: number
  /** The characters that it adds; '' if a later token completes its bytes. */
  text: string
  kind: TokenKind
  /** In the loss. */
  trained: boolean
  /** Of the sampler, nats. */
  logprob?: number
  /** Of the trainer, before the step; absent where the token was not trained on, or an older version wrote the run. */
  trainer_logprob?: number
  /** exp(trainer_logprob - logprob). */
  ratio?: number
  advantage?: number
  /** Of the weights that sampled it. */
  version?: number
  /** Of the distribution it was drawn from, as the trainer computes it, nats. */
  entropy?: number
}

/** A turn: what was read, then what was answered. Tokens are a range of RolloutDetails.tokens. */
export interface ViewTurn {
  index: number
  /** The turn whose tokens it continues; null: it begins a sequence (a branch). */
  parent: number | null
  branch: boolean
  /** The prompt or what the environment said: tokens[first .. sampledFirst - 1]. */
  first: number
  /** The answer: tokens[sampledFirst .. end - 1]. */
  sampledFirst: number
  end: number
  /** Mean log-probability of the answer's tokens. */
  logprob: number | null
}

/** Rollouts of the same group: the other answers to the same task. This one is among them. */
export type ViewSibling = Pick<
  RolloutSummary,
  'step' | 'row' | 'index' | 'reward' | 'advantage' | 'tokens' | 'turns' | 'truncated' | 'error'
>

export interface RolloutDetails {
  step: number
  row: number
  rollout: RolloutRow
  tokens: ViewToken[]
  turns: ViewTurn[]
  siblings: ViewSibling[]
  /** Where token texts come from: the tokenizer's file; or why there are none (texts are then ids). */
  tokenizer: { ok: boolean; about: string }
}

/** Something that ran from `start` to `end`, in seconds since the step began (may be negative: begun for it before). */
export interface TimelineSpan {
  /** trainer, engine (an answer being sampled), environment (between answers, scoring), orchestrator (waiting in line), waits ... */
  track: string
  /** generate, score, forward_backward, optimizer, publish, wait_for_batch ... */
  name: string
  start: number
  end: number
  step: number
  /** A rollout's group and index, or other facts. */
  detail?: Record<string, string | number | boolean | null>
}

export interface TimelineAnswer {
  step: number
  /** Steps that have one, ascending. */
  steps: number[]
  spans: TimelineSpan[]
  /** Seconds since 1970 at which the step began. */
  began: number | null
  /** Spans that were left out to keep the file small. */
  left_out: number
}

export interface KernelRow {
  kernel: string
  calls: number
  ms: number
  /** Of the GPU's time, 0 to 1. */
  share: number
  gflops?: number
  gbs?: number
}

export interface KernelsAnswer {
  /** 'trace' or 'bench': where the rows come from; null: nothing there, and `command` makes it. */
  source: 'trace' | 'bench' | null
  rows: KernelRow[]
  command: string
  /** Sentences on how exact it is. */
  notes: string[]
}

export interface CompareAnswer {
  runs: string[]
  /** Only keys in which the runs differ; null if a run lacks the key. */
  keys: { key: string; values: FlatValue[] }[]
}

export interface ViewEvent {
  /** The run's id; null for 'runs' (a run came or went, or a status changed: ask for the list again). */
  run: string | null
  kind: 'metrics' | 'rollouts' | 'runs'
}

export interface ErrorAnswer {
  error: { message: string }
}
