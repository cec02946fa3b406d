/** Finds arguments that the user's loss, advantage or filter never reads: with a typo in its name an argument has no effect. */

interface WatchedArgs {
  /** A copy of `args` for one call. */
  args: Record<string, unknown>
  /** Names that nothing has read so far. */
  unread: ReadonlySet<string>
}

/** Not a Proxy, since a function may spread its arguments, write them as JSON or clone them. */
export function watchArgs(given: Record<string, unknown>): WatchedArgs {
  const own = { ...given }
  const unread = new Set(Object.keys(own))
  const looks = [...unread].map((key): [string, PropertyDescriptor] => [
    key,
    {
      enumerable: true,
      get() {
        unread.delete(key)
        return own[key]
      },
      set(value) {
        own[key] = value
      },
    },
  ])
  return { args: Object.defineProperties({}, Object.fromEntries(looks)), unread }
}

/** The warnings about unread arguments. `where`: what stands before their names, as the user wrote it; `who`: the files that were given them. */
export const unreadNotices = ({ unread }: WatchedArgs, where: string, who: string): string[] =>
  [...unread].map(
    (name) =>
      `${where}${name}: ${who} did not read it in a trial with made-up numbers. If its name is misspelled, it has no effect.`,
  )
