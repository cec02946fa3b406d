/** The keyboard: single keys and pairs like `g r`; ignored while the user types in a field. */
import { useEffect, useRef } from 'preact/hooks'

/** @typedef {Record<string, (event: KeyboardEvent) => void>} KeyMap */

/** The active key maps; the newest is last, and is asked first. @type {{ map: KeyMap }[]} */
const stack = []
let first = ''
let firstAt = 0

/** Whether the key belongs to the element that has the focus. @param {KeyboardEvent} event */
function isTyping(event) {
  const target = /** @type {HTMLElement} */ (event.target)
  if (!(target instanceof HTMLElement)) return false
  if (target instanceof HTMLInputElement) {
    if (target.type === 'range') return event.key.startsWith('Arrow') || event.key === 'Home' || event.key === 'End'
    return !['checkbox', 'radio', 'button'].includes(target.type)
  }
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return
  if (event.key === 'Escape' && event.target instanceof HTMLElement && isTyping(event)) {
    event.target.blur()
    return
  }
  if (isTyping(event)) return
  // Links and buttons keep the keys that they handle themselves.
  const onControl = event.target instanceof Element && event.target.closest('a[href],button,summary,input') !== null
  if (onControl && (event.key === 'Enter' || event.key === ' ')) return
  const pair = event.timeStamp - firstAt < 1200 ? `${first} ${event.key}` : ''
  for (const name of [pair, event.key]) {
    const owner = name && stack.findLast(({ map }) => map[name])
    if (owner) {
      event.preventDefault()
      first = ''
      owner.map[name](event)
      return
    }
  }
  first = event.key
  firstAt = event.timeStamp
}

addEventListener('keydown', onKey)

/** Activates keys while the component is mounted. A view's keys take precedence over the page's. @param {KeyMap} map */
export function useKeys(map) {
  // One object that keeps the newest map, so that keys see today's state without being registered anew.
  const holder = useRef({ map }).current
  holder.map = map
  useEffect(() => {
    stack.push(holder)
    return () => {
      stack.splice(stack.indexOf(holder), 1)
    }
  }, [])
}

/** Moves the focus among elements: the next one after the one that has it (or holds what has it). @param {string} selector @param {number} by */
export function moveFocus(selector, by) {
  const all = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)])
  if (all.length === 0) return
  const at = all.findIndex((one) => one.contains(document.activeElement))
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))
  all[next].focus()
  all[next].scrollIntoView({ block: 'nearest' })
}
