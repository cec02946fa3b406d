/** Requests to the server, and its events. Everything comes from the same origin; the access key is a cookie. */
import { useCallback, useEffect, useRef, useState } from 'preact/hooks'

/** @typedef {import('../types.ts').ViewEvent} ViewEvent */

/**
 * @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>}
 * @throws {Error} with the server's own sentence
 */
export async function get(path, signal) {
  let response
  try {
    response = await fetch(path, { signal, credentials: 'same-origin', headers: { accept: 'application/json' } })
  } catch (error) {
    if (signal?.aborted) throw error
    throw new Error('The server does not answer: is `node cli.js view` still running?')
  }
  const text = await response.text()
  let body
  try {
    body = JSON.parse(text)
  } catch {
    throw new Error(`The server answered with something that is not JSON (status ${response.status}).`)
  }
  if (!response.ok) throw new Error(body?.error?.message ?? `The server answered with status ${response.status}.`)
  return body
}

/**
 * The API path of a part of a run.
 * @param {string} id @param {string} [rest] @param {Record<string, string | number | boolean | null | undefined>} [query]
 */
export function runPath(id, rest = '', query = {}) {
  const list = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== '')
  const text = new URLSearchParams(list.map(([key, value]) => [key, String(value)])).toString()
  return `/api/runs/${encodeURIComponent(id)}${rest}${text ? `?${text}` : ''}`
}

/**
 * Fetches a path, again when it changes or `reload` is called; meanwhile the last answer stays.
 * @template T
 * @param {string | null} path null: nothing is asked for
 * @returns {{ data: T | undefined, error: string | null, loading: boolean, reload: () => void }}
 */
export function useApi(path) {
  const [state, setState] = useState({
    path: /** @type {string | null} */ (null),
    data: /** @type {T | undefined} */ (undefined),
    error: /** @type {string | null} */ (null),
  })
  const [turn, setTurn] = useState(0)
  const [loading, setLoading] = useState(false)
  useEffect(() => {
    if (path === null) return undefined
    const control = new AbortController()
    setLoading(true)
    get(path, control.signal).then(
      (data) => {
        setState({ path, data, error: null })
        setLoading(false)
      },
      (error) => {
        if (control.signal.aborted) return
        setState({ path, data: undefined, error: error.message })
        setLoading(false)
      },
    )
    return () => control.abort()
  }, [path, turn])
  const reload = useCallback(() => setTurn((n) => n + 1), [])
  return { data: path === null ? undefined : state.data, error: path === null ? null : state.error, loading, reload }
}

/** @type {Set<(event: ViewEvent) => void>} */
const listeners = new Set()
/** @type {Set<(live: boolean) => void>} */
const watchers = new Set()
/** @type {EventSource | null} */
let source = null
let live = false
/** When the page was loaded: nothing was fetched before. */
const begun = performance.now()

function connect() {
  // The server also sends the events since the page was loaded; after a break the browser sends Last-Event-ID by itself.
  source = new EventSource(`/api/events?age=${Math.ceil(performance.now() - begun)}`)
  const say = (/** @type {boolean} */ now) => {
    live = now
    for (const watcher of watchers) watcher(now)
  }
  source.onopen = () => say(true)
  source.onerror = () => say(false)
  source.onmessage = (message) => {
    /** @type {ViewEvent} */
    let event
    try {
      event = JSON.parse(message.data)
    } catch {
      return
    }
    for (const listener of listeners) listener(event)
  }
}

/** Calls `listener` with each event while the component is mounted. @param {(event: ViewEvent) => void} listener */
export function useEvents(listener) {
  const ref = useRef(listener)
  ref.current = listener
  useEffect(() => {
    if (source === null) connect()
    const own = (/** @type {ViewEvent} */ event) => ref.current(event)
    listeners.add(own)
    return () => void listeners.delete(own)
  }, [])
}

/** Whether events arrive. */
export function useLive() {
  const [state, setState] = useState(live)
  useEffect(() => {
    watchers.add(setState)
    setState(live)
    return () => void watchers.delete(setState)
  }, [])
  return state
}

/** A function that runs `action` at most once in `ms` milliseconds, and always after its last call. @param {() => void} action @param {number} ms */
export function useThrottled(action, ms) {
  const ref = useRef({ action, timer: /** @type {ReturnType<typeof setTimeout> | undefined} */ (undefined) })
  ref.current.action = action
  useEffect(() => () => clearTimeout(ref.current.timer), [])
  return useCallback(() => {
    ref.current.timer ??= setTimeout(() => {
      ref.current.timer = undefined
      ref.current.action()
    }, ms)
  }, [ms])
}

/** Follows a value once it has not changed for `ms` milliseconds. @template T @param {T} value @param {number} ms @returns {T} */
export function useRested(value, ms) {
  const [rested, setRested] = useState(value)
  useEffect(() => {
    const timer = setTimeout(() => setRested(value), ms)
    return () => clearTimeout(timer)
  }, [value, ms])
  return rested
}
