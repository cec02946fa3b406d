/** Rows of a long list, fetched a page at a time as they come into sight. */
import { useCallback, useEffect, useRef, useState } from 'preact/hooks'
import { get, runPath } from './api.js'

/** @typedef {import('../types.ts').RolloutSummary} RolloutSummary */
/** @typedef {import('../types.ts').RolloutsAnswer} RolloutsAnswer */

export const PAGE = 100
/** Most pages kept; the oldest are dropped first. */
const KEPT = 30
/** A search answers after two seconds with what it has found so far; the server is asked to continue at most this many times. */
const ROUNDS = 60

/**
 * @param {string} run @param {Record<string, string>} query
 * @param {string} version changes when the list must be read anew
 */
export function useRollouts(run, query, version) {
  const key = JSON.stringify([run, query, version])
  const state = useRef({
    key: '',
    pages: /** @type {Map<number, RolloutSummary[]>} */ (new Map()),
    asked: /** @type {Set<number>} */ (new Set()),
    rounds: 0,
  })
  const [answer, setAnswer] = useState(
    /** @type {{ total: number, truncated: boolean, searchedFrom: number | null } | null} */ (null),
  )
  const [error, setError] = useState(/** @type {string | null} */ (null))
  const [, redraw] = useState(0)

  const load = useCallback(
    async (/** @type {number} */ page) => {
      const own = state.current
      if (own.asked.has(page) || own.key !== key) return
      own.asked.add(page)
      try {
        /** @type {RolloutsAnswer} */
        const found = await get(runPath(run, '/rollouts', { ...query, limit: PAGE, offset: page * PAGE }))
        if (state.current !== own) return
        own.pages.set(page, found.rows)
        for (const old of own.pages.keys()) {
          if (own.pages.size <= KEPT) break
          own.pages.delete(old)
          own.asked.delete(old)
        }
        setAnswer({ total: found.total, truncated: found.truncated, searchedFrom: found.searchedFrom })
        setError(null)
        redraw((n) => n + 1)
        if (found.truncated && page === 0 && own.rounds++ < ROUNDS) {
          // The server continues where it stopped; new matches may come before those found already.
          own.asked.clear()
          own.pages = new Map([[0, found.rows]])
          await load(0)
        }
      } catch (failure) {
        own.asked.delete(page)
        if (state.current === own) setError(/** @type {Error} */ (failure).message)
      }
    },
    [key],
  )
  useEffect(() => {
    // The old rows stay visible until the first page of the new list has arrived.
    state.current = { key, pages: new Map(), asked: new Set(), rounds: 0 }
    void load(0)
    // Ends a search that is no longer shown.
    return () => {
      state.current = { key: '', pages: state.current.pages, asked: new Set(), rounds: 0 }
    }
  }, [key])
  /** @param {number} i @returns {RolloutSummary | undefined} */
  const rowAt = (i) => state.current.pages.get(Math.floor(i / PAGE))?.[i % PAGE]
  /** Where a rollout stands among the rows that were read; -1 where it does not. @param {{ step: number, row: number }} place */
  const indexOf = ({ step, row }) => {
    for (const [page, rows] of state.current.pages) {
      const i = rows.findIndex((one) => one.step === step && one.row === row)
      if (i >= 0) return page * PAGE + i
    }
    return -1
  }
  /** @param {number} first @param {number} end */
  const need = (first, end) => {
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(first, end - 1) / PAGE); page++) void load(page)
  }
  return { answer, error, searching: answer?.truncated === true && state.current.rounds <= ROUNDS, rowAt, indexOf, need }
}
