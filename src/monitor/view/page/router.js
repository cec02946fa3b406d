/** The page's state, kept in the hash of its address (`#/view?name=value`), so that each state can be bookmarked and shared. */
import { useEffect, useState } from 'preact/hooks'

/** @typedef {{ view: string, params: Record<string, string> }} Place */

/** Parameters that are kept from view to view; others belong to one view. */
const SHARED = ['runs', 'run', 'step']

/** Most `replaceState` calls within so many milliseconds: browsers refuse more than 100 in 30 s. */
const [MOST, WITHIN] = [12, 4000]

/** The current place. The address bar follows, with a delay if it changes too often (a dragged slider). */
let now = location.hash
/** @type {number[]} */
let replaced = []
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer
/** @type {Set<() => void>} */
const followers = new Set()

/** The address was changed from outside: by a link, the back button, or typing. */
function follow() {
  clearTimeout(timer)
  timer = undefined
  now = location.hash
  for (const follower of followers) follower()
}
addEventListener('hashchange', follow)
addEventListener('popstate', follow)

function replaceAddress() {
  clearTimeout(timer)
  timer = undefined
  const time = performance.now()
  replaced = replaced.filter((at) => time - at < WITHIN)
  if (replaced.length < MOST) {
    replaced.push(time)
    history.replaceState(null, '', now)
  } else timer = setTimeout(replaceAddress, replaced[0] + WITHIN - time)
}

/** @param {string} [hash] @returns {Place} */
export function readPlace(hash = now) {
  const [path, query = ''] = hash.replace(/^#\/?/, '').split('?')
  return { view: path.split('/')[0] || 'runs', params: Object.fromEntries(new URLSearchParams(query)) }
}

/** The address of a view. Empty values are left out. @param {string} view @param {Record<string, string | number | null | undefined>} params */
export function href(view, params = {}) {
  const list = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== '')
  const query = new URLSearchParams(list.map(([key, value]) => [key, String(value)])).toString()
  return `#/${view}${query ? `?${query}` : ''}`
}

/**
 * The address of another view with the same runs and step, and more parameters.
 * @param {string} view @param {Record<string, string | number | null | undefined>} [more]
 */
export function hrefFrom(view, more = {}) {
  const { params } = readPlace()
  const kept = Object.fromEntries(SHARED.flatMap((key) => (params[key] ? [[key, params[key]]] : [])))
  return href(view, { ...kept, ...more })
}

/** @param {string} hash @param {boolean} [replace] without an entry in the history */
export function go(hash, replace = false) {
  if (hash === now) return
  now = hash
  if (replace) replaceAddress()
  else {
    clearTimeout(timer)
    timer = undefined
    history.pushState(null, '', hash)
  }
  for (const follower of followers) follower()
}

/**
 * Changes parameters of the view that is open; null or '' takes one away.
 * @param {Record<string, string | number | null | undefined>} changes @param {boolean} [keep] with an entry in the history
 */
export function setParams(changes, keep = false) {
  const { view, params } = readPlace()
  go(href(view, { ...params, ...changes }), !keep)
}

/** The place, followed. @returns {Place} */
export function usePlace() {
  const [place, setPlace] = useState(readPlace)
  useEffect(() => {
    const follower = () => setPlace(readPlace())
    followers.add(follower)
    follower()
    return () => void followers.delete(follower)
  }, [])
  return place
}

/** A list of run ids in a parameter: each encoded, commas between. @param {string[]} ids */
export const joinIds = (ids) => ids.map(encodeURIComponent).join(',')

/** Names of metrics as text. Only what `splitIds` needs is encoded, so that addresses stay readable. @param {string[]} keys */
export const joinKeys = (keys) => keys.map((key) => key.replace(/[%,]/g, encodeURIComponent)).join(',')

/** @param {string | undefined} text @returns {string[]} */
export const splitIds = (text) => (text ? text.split(',').map(decode) : [])

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
