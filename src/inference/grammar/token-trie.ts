/** A trie of a vocabulary's tokens by their bytes, laid out in arrays: one pass visits all tokens, and a subtree is skipped in one step. */

export interface TokenTrie {
  /** Words of a mask: 32 tokens each. */
  words: number
  /** Nodes in the order of a walk: a node's byte, how deep it is (1 first), and the node after all below it. */
  byteAt: Uint8Array
  depthAt: Uint16Array
  endAt: Int32Array
  /** The tokens that end at node i: `tokens` from `tokenAt[i]` up to `tokenAt[i + 1]`. */
  tokenAt: Int32Array
  tokens: Int32Array
}

/** @param bytesOf a token's bytes; none, or null, for one that no text may hold */
export function buildTrie(size: number, bytesOf: (id: number) => Uint8Array | null): TokenTrie {
  const entries: { id: number; text: string }[] = []
  for (let id = 0; id < size; id++) {
    const bytes = bytesOf(id)
    // One character for each byte: such strings compare quickly, and in the order of their bytes.
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
      // Nodes on the way to this token share its mark with the node below them, and so hold none themselves.
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
