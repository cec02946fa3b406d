/** Chromium for the tests of the page, and what must hold of every page that it shows. */
import { accessSync, constants } from 'node:fs'
import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright-core'
import { expect, onTestFinished } from 'vitest'

const program = process.env.CHROMIUM ?? '/usr/bin/chromium'

export const withoutChromium = !there(program)
if (withoutChromium)
  console.log(`${program} is missing: the tests of the page are skipped (scripts/setup-chromium.sh installs it)`)

function there(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return true
  } catch {
    return false
  }
}

export async function launch(): Promise<Browser> {
  // As root Chromium has no sandbox of its own; the pages are ours.
  return await chromium.launch({ executablePath: program, args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] })
}

export interface Watched {
  page: Page
  /** Paths below /api/ that were asked for, in order. */
  asked: string[]
}

/** A page of its own, closed after the test, which fails where the page wrote an error, asked another origin, or was answered with an error. */
export async function openPage(browser: Browser, url: string, options: BrowserContextOptions = {}): Promise<Watched> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: 'reduce', ...options })
  const page = await context.newPage()
  page.setDefaultTimeout(60_000)
  const faults: string[] = []
  const asked: string[] = []
  const { origin } = new URL(url)
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) faults.push(`console: ${message.text()}`)
  })
  page.on('pageerror', (error) => faults.push(`error: ${error.message}`))
  page.on('dialog', (dialog) => {
    faults.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  page.on('request', (request) => {
    const at = new URL(request.url())
    if (at.origin !== origin && at.protocol !== 'data:') faults.push(`another origin: ${request.url()}`)
    if (at.pathname.startsWith('/api/')) asked.push(at.pathname + at.search)
  })
  page.on('response', (response) => {
    if (response.status() >= 400) faults.push(`${response.status()}: ${response.url()}`)
  })
  onTestFinished(async () => {
    await context.close()
    expect(faults).toEqual([])
  })
  await page.goto(url)
  await page.locator('h1').waitFor()
  return { page, asked }
}

/** Goes to a place of the page by its address, and waits until nothing is being read. */
export async function goTo(page: Page, hash: string): Promise<void> {
  await page.evaluate((to) => {
    location.hash = to
  }, hash)
  await settled(page)
}

/** Until no answer is waited for and the page was drawn twice more. */
export async function settled(page: Page): Promise<void> {
  await page.waitForFunction(() => document.querySelector('.loading, .waiting') === null)
  await page.evaluate(() => new Promise<void>((done) => requestAnimationFrame(() => requestAnimationFrame(() => done()))))
}

export interface Low {
  text: string
  contrast: number
}

/**
 * Texts that are seen with a contrast under 4.5 (WCAG 2.2, 1.4.3; 3 from 24 px on), with the colours as they were computed and grounds one over the other.
 * Disabled controls are left out, as there.
 */
export async function lowContrast(page: Page): Promise<Low[]> {
  return await page.evaluate(() => {
    type Colour = [number, number, number, number]
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true })!
    const read = (css: string): Colour => {
      canvas.clearRect(0, 0, 1, 1)
      canvas.fillStyle = '#000'
      canvas.fillStyle = css
      canvas.fillRect(0, 0, 1, 1)
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
      return [r, g, b, a / 255]
    }
    const over = (top: Colour, ground: Colour): Colour => {
      const mixed = (i: number) => top[i] * top[3] + ground[i] * (1 - top[3])
      return [mixed(0), mixed(1), mixed(2), 1]
    }
    const luminance = (colour: Colour): number => {
      const [r, g, b] = colour.slice(0, 3).map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4))
      return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const ratio = (a: Colour, b: Colour): number => {
      const [low, high] = [luminance(a), luminance(b)].toSorted((x, y) => x - y)
      return (high + 0.05) / (low + 0.05)
    }
    /** Grounds that a text may stand on: more than one over a bar or a ramp. */
    const grounds = (element: Element): Colour[] => {
      const above = element.parentElement ? grounds(element.parentElement) : [[255, 255, 255, 1] as Colour]
      const { backgroundColor, backgroundImage } = getComputedStyle(element)
      const own = above.map((ground) => over(read(backgroundColor), ground))
      const stops = backgroundImage.match(/(?:rgba?|color|oklab|oklch)\([^()]*\)/g) ?? []
      const fill = element.matches('.bar') ? element.querySelector('.bar-fill') : null
      const bars = fill ? [getComputedStyle(fill).backgroundColor] : []
      return [...own, ...[...stops, ...bars].flatMap((stop) => own.map((ground) => over(read(stop), ground)))]
    }
    const low: Low[] = []
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement!
      const text = node.textContent!.trim()
      if (text === '' || !element.checkVisibility() || element.closest('svg, .hidden, :disabled, option, script')) continue
      const { color, fontSize } = getComputedStyle(element)
      const contrast = Math.min(...grounds(element).map((ground) => ratio(over(read(color), ground), ground)))
      if (contrast < (parseFloat(fontSize) >= 24 ? 3 : 4.5))
        low.push({ text: text.slice(0, 40), contrast: Math.round(contrast * 100) / 100 })
    }
    return low
  })
}

/** What a page must have that is read aloud or gone through by keyboard: names, landmarks, an order of headings; the sentences say what it has not. */
export async function barriers(page: Page): Promise<string[]> {
  return await page.evaluate(() => {
    const found: string[] = []
    const one = (selector: string) => {
      const n = document.querySelectorAll(selector).length
      if (n !== 1) found.push(`${n} of ${selector}`)
    }
    for (const selector of ['main', 'header.top', 'nav[aria-label="Views"]', 'footer', 'main h1', '[aria-current="page"]'])
      one(selector)
    const words = (element: Element | null | undefined): string => element?.textContent?.trim() ?? ''
    const name = (element: Element): string =>
      element.getAttribute('aria-label') ??
      (words(document.getElementById(element.getAttribute('aria-labelledby') ?? '')) ||
        ('labels' in element && element.labels
          ? [...(element.labels as NodeListOf<HTMLLabelElement>)].map(words).join(' ')
          : '') ||
        (element.matches('a, button, summary') ? words(element) : ''))
    for (const element of document.querySelectorAll(
      'input, select, textarea, button, a[href], summary, [tabindex="0"], [role="img"], dialog',
    )) {
      if (name(element).trim() === '') found.push(`no name: ${element.outerHTML.slice(0, 120)}`)
      if (element.getAttribute('tabindex') && Number(element.getAttribute('tabindex')) > 0)
        found.push(`an order of its own: ${element.outerHTML.slice(0, 120)}`)
    }
    for (const image of document.querySelectorAll('img')) if (!image.hasAttribute('alt')) found.push(`no alt: ${image.src}`)
    for (const svg of document.querySelectorAll('svg')) {
      if (!svg.closest('[aria-hidden="true"]') && !svg.hasAttribute('aria-label'))
        found.push(`a drawing without words: ${svg.outerHTML.slice(0, 80)}`)
    }
    const ids = [...document.querySelectorAll('[id]')].map(({ id }) => id)
    for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) found.push(`twice the id ${id}`)
    const levels = [...document.querySelectorAll('main :is(h1, h2, h3, h4)')]
      .filter((h) => h.checkVisibility())
      .map((h) => Number(h.tagName[1]))
    levels.forEach((level, i) => {
      if (i > 0 && level > levels[i - 1] + 1) found.push(`h${level} after h${levels[i - 1]}`)
    })
    for (const row of document.querySelectorAll('table')) if (!row.querySelector('th[scope]')) found.push('a table without heads')
    if (document.documentElement.lang === '' || document.title === '') found.push('no language or title')
    return found
  })
}

/** By how many pixels the page is wider than the window. */
export async function overflow(page: Page): Promise<number> {
  return await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
}
