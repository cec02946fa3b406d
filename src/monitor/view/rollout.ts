/** One rollout in full: its tokens with all numbers for each, its turns, and the other answers to the same task. */
import { mean } from '../aggregate.ts'
import type { RolloutRow, TokensRow } from '../rollout-writer.ts'
import { rowAt } from './lines.ts'
import { messagesOf } from '../row-messages.ts'
import type { Rollouts } from './rollouts.ts'
import type { Run } from './runs.ts'
import type { RolloutDetails, TokenKind, ViewSibling, ViewToken, ViewTurn } from './types.ts'

/** Turns token ids into bytes; implemented by the tokenizer, which is in another room. */
export interface TokenBytes {
  /** Where the tokenizer is from. */
  about: string
  /** The bytes of a token, which may be incomplete characters; null for an unknown id. */
  bytes: (id: number) => Uint8Array | null
}

/** Reads one rollout with its tokens, turns and group; null if the step or the row does not exist. */
export async function rolloutDetails(
  run: Run,
  rollouts: Rollouts,
  { step, row }: { step: number; row: number },
  tokenizer: TokenBytes | string,
): Promise<RolloutDetails | null> {
  const file = await rollouts.file(run, step)
  const summary = file.summaries[row]
  const rollout = summary && (await rowAt<RolloutRow>(file.path, file.starts[row]))
  if (!summary || !rollout) return null
  const tokens = await tokensOf(run, rollouts, step, row, rollout)
  const texts = typeof tokenizer === 'string' ? undefined : tokenizer
  const siblings = file.summaries.filter(
    (other) => other !== null && other.group === summary.group && other.split === summary.split,
  )
  return {
    step,
    row,
    rollout: {
      ...rollout,
      env: summary.env,
      index: summary.index,
      error: errorIn(rollout.error),
      prompt: messagesOf(rollout.prompt),
      completion: messagesOf(rollout.completion, 'assistant'),
    },
    ...(tokens ? viewTokens(tokens, rollout, texts) : { tokens: [], turns: [] }),
    siblings: siblings.map((other) => siblingOf(other!)).toSorted((a, b) => a.index - b.index),
    tokenizer: typeof tokenizer === 'string' ? { ok: false, about: tokenizer } : { ok: true, about: tokenizer.about },
  }
}

/** An error as the page shows it; other programs write text. */
const errorIn = (error: unknown): RolloutRow['error'] =>
  typeof error === 'string' ? { error, message: '', error_chain_repr: '', error_chain_str: '' } : (error as RolloutRow['error'])

const siblingOf = ({ step, row, index, reward, advantage, tokens, turns, truncated, error }: ViewSibling): ViewSibling => ({
  step, row, index, reward, advantage, tokens, turns, truncated, error,
}) // prettier-ignore

/** Finds the token row: on the line with the same number, unless a killed run left one of the files one line short. */
async function tokensOf(run: Run, rollouts: Rollouts, step: number, row: number, of: RolloutRow): Promise<TokensRow | null> {
  const { path, starts } = await rollouts.tokens(run, step)
  const isIt = (found: TokensRow | null): boolean =>
    found !== null &&
    found.group === of.group &&
    found.index === of.index &&
    found.split === of.split &&
    Array.isArray(found.completion_ids)
  const nearby = [row, ...starts.keys()]
  for (const line of nearby) {
    const found = starts[line] === undefined ? null : await rowAt<TokensRow>(path, starts[line])
    if (isIt(found)) return found
  }
  return null
}

/** Tokens with their texts, turn after turn. */
function viewTokens(
  row: TokensRow,
  { advantage, completion }: Pick<RolloutRow, 'advantage' | 'completion'>,
  texts: TokenBytes | undefined,
): Pick<RolloutDetails, 'tokens' | 'turns'> {
  const tokens: ViewToken[] = []
  const turns: ViewTurn[] = []
  const parts = row.turns ?? [{ branch: true, prompt_ids: row.prompt_ids ?? [], sampled: row.completion_ids.length }]
  const between = kindsBetween(completion)
  let [sampled, begin] = [0, 0]
  parts.forEach((part, index) => {
    const branch = part.branch || index === 0
    const first = tokens.length
    if (branch) {
      if (texts) spell(tokens, begin, texts)
      begin = first
    }
    const kind = branch ? 'prompt' : (between[index] ?? 'env')
    for (const id of part.prompt_ids) tokens.push({ id, text: String(id), kind, trained: false })
    const sampledFirst = tokens.length
    for (const end = Math.min(sampled + part.sampled, row.completion_ids.length); sampled < end; sampled++)
      tokens.push(sampledToken(row, sampled, advantage, tokens.length > begin))
    const logprobs = tokens.slice(sampledFirst).flatMap(({ logprob }) => logprob ?? [])
    const logprob = mean(logprobs)
    turns.push({ index, parent: branch ? null : index - 1, branch, first, sampledFirst, end: tokens.length, logprob })
  })
  if (texts) spell(tokens, begin, texts)
  return { tokens, turns }
}

/** @param follows whether a token precedes it: the first token of a sequence is not predicted */
function sampledToken(row: TokensRow, i: number, advantage: RolloutRow['advantage'], follows: boolean): ViewToken {
  const known = (list: readonly (number | null)[] | undefined): number | undefined => list?.[i] ?? undefined
  const [id, logprob] = [row.completion_ids[i], known(row.logprobs)]
  const trainer = known(row.trainer_logprobs)
  const own = advantage === null || advantage === undefined ? undefined : typeof advantage === 'number' ? advantage : advantage[i]
  const trained = own !== undefined && logprob !== undefined && follows
  const token: ViewToken = {
    id,
    text: String(id),
    kind: 'sampled',
    trained,
    logprob,
    version: known(row.versions),
    advantage: own,
  }
  if (trained && trainer !== undefined) {
    token.trainer_logprob = trainer
    token.ratio = Math.exp(trainer - logprob)
    token.entropy = known(row.entropies)
  }
  return token
}

/** For each turn, whether a tool or the environment wrote the text before its answer. */
function kindsBetween(completion: unknown): TokenKind[] {
  const kinds: TokenKind[] = ['prompt']
  let kind: TokenKind = 'env'
  for (const { role } of messagesOf(completion).slice(1)) {
    if (role === 'tool') kind = 'tool'
    if (role !== 'assistant') continue
    kinds.push(kind)
    kind = 'env'
  }
  return kinds
}

/** Sets the texts of the tokens from `begin` on, which are one sequence. A character belongs to the token that completes it. */
function spell(tokens: ViewToken[], begin: number, { bytes }: TokenBytes): void {
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  for (const token of tokens.slice(begin)) {
    const own = bytes(token.id)
    token.text = own ? decoder.decode(own, { stream: true }) : `<${token.id}>`
  }
  const rest = decoder.decode()
  if (rest !== '' && tokens.length > begin) tokens.at(-1)!.text += rest
}
