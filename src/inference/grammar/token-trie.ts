/** A trie of a vocabulary's tokens by their bytes, stored in arrays: one pass visits all tokens, and a subtree is skipped in one step. */

export interface TokenTrie {
  /** Number of words of a mask, which hold 32 tokens each. */
  words: number
  /** Nodes in depth-first order: a node's byte, its depth (from 1), and the first node after its subtree. */
  byteAt: Uint8Array
  depthAt: Uint16Array
  endAt: Int32Array
  /** The tokens that end at node i: `tokens` from `tokenAt[i]` up to `tokenAt[i + 1]`. */
  tokenAt: Int32Array
  tokens: Int32Array
}

/**
 * Builds the trie of the token ids below `size`.
 * @param bytesOf a token's bytes; empty or null for a token that no text may contain
 */
export function buildTrie(size: number, bytesOf: (id: number) => Uint8Array | null): TokenTrie {
  const entries: { id: number; text: string }[] = []
  for (let id = 0; id < size; id++) {
    const bytes = bytesOf(id)
    // One character per byte: such strings compare quickly, in byte order.
    if (bytes && bytes.length > 0) entries.push({ id, text: Buffer.from(bytes).toString('latin1') })
  }
  entries.sort((a, b) => (a.text < b.text ? -1 : a.text > b.text ? 1 : a.id - b.id))
  const byteAt: number[] = []
  const depthAt: number[] = []
  const endAt: number[] = []
  const tokenAt: number[] = []
  const open: number[] = []
  let before = ''
  entries.forEach(({ text }, i) => {
    let shared = 0
    while (shared < text.length && shared < before.length && text[shared] === before[shared]) shared++
    while (open.length > shared) endAt[open.pop()!] = byteAt.length
    for (let depth = shared; depth < text.length; depth++) {
      open.push(byteAt.length)
      byteAt.push(text.charCodeAt(depth))
      depthAt.push(depth + 1)
      endAt.push(0)
      // Intermediate nodes start at the same index as the node below them, and so hold no tokens.
      tokenAt.push(i)
    }
    before = text
  })
  while (open.length > 0) endAt[open.pop()!] = byteAt.length
  tokenAt.push(entries.length)
  return {
    words: Math.ceil(size / 32),
    byteAt: Uint8Array.from(byteAt),
    depthAt: Uint16Array.from(depthAt),
    endAt: Int32Array.from(endAt),
    tokenAt: Int32Array.from(tokenAt),
    tokens: Int32Array.from(entries, ({ id }) => id),
  }
}
