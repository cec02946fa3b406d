/** Turns of a rollout as a tree. */

/** @typedef {import('../types.ts').ViewTurn} ViewTurn */

/**
 * Where the turns stand: each a column further than its parent, each new sequence on a line of its own.
 * @param {ViewTurn[]} turns @returns {{ turn: ViewTurn, column: number, line: number }[]}
 */
export function placesOf(turns) {
  let lines = 0
  /** @type {Map<number, { turn: ViewTurn, column: number, line: number }>} */
  const places = new Map()
  for (const turn of turns) {
    const parent = turn.parent === null ? undefined : places.get(turn.parent)
    // A second turn that continues the same parent gets a line of its own.
    const taken = parent && [...places.values()].some((other) => other.turn.parent === turn.parent && other.turn !== turn)
    places.set(turn.index, {
      turn,
      column: parent ? parent.column + 1 : turn.index,
      line: parent && !taken ? parent.line : lines++,
    })
  }
  return [...places.values()]
}
