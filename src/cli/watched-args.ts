/** Arguments of a loss, an advantage or a filter of the user's, of which one that nothing reads is seen: a slip in its name leaves the default in place. */

interface WatchedArgs {
  /** As `args`, for one call. */
  args: Record<string, unknown>
  /** Those that nothing has looked at so far. */
  unread: ReadonlySet<string>
}

/** No Proxy: a function may also spread its arguments, write them as JSON or clone them. */
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

/** What to tell of them; `key`: loss_args, say, `who`: the files that were handed them. */
export const unreadNotices = ({ unread }: WatchedArgs, key: string, who: string): string[] =>
  [...unread].map(
    (name) =>
      `trainer.args.${key}.${name}: ${who} did not look at it in a try on made-up numbers. A slip in its name? Then its default is used.`,
  )
