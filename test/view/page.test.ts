/** The page of `node cli.js view` in Chromium, over the real server: a real short run, a long one and a hostile one, by mouse and by keyboard. */
import { appendFileSync, cpSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest'
import { tokenBytes } from '../../src/cli/view.ts'
import { Random } from '../../src/common/random.ts'
import type { TokensRow } from '../../src/monitor/rollout-writer.ts'
import { num } from '../../src/monitor/view/page/format.js'
import { smoothed } from '../../src/monitor/view/page/series.js'
import { startView, type RunningView } from '../../src/monitor/view/server.ts'
import { TinyRuns } from '../cli/tiny-run.ts'
import { seed } from '../seed.ts'
import { barriers, goTo, launch, lowContrast, openPage, overflow, settled, withoutChromium } from './browser.ts'
import { HOSTILE, HOSTILE_NAME, hostileRun, LONG, longRow, longRun } from './folders.ts'

const runs = new TinyRuns()
let browser: Browser
let view: RunningView

/** Views, with a run for each. */
const places = (run: string): string[] => [
  '#/runs',
  `#/curves?runs=${encodeURIComponent(encodeURIComponent(run))}`,
  `#/rollouts?run=${encodeURIComponent(run)}`,
  `#/rollouts?run=${encodeURIComponent(run)}&at=1.0`,
  `#/timeline?run=${encodeURIComponent(run)}`,
  `#/kernels?run=${encodeURIComponent(run)}`,
  `#/config?run=${encodeURIComponent(run)}`,
]

describe.skipIf(withoutChromium)('the page', () => {
  beforeAll(async () => {
    await runs.prepare()
    const { code, stderr } = await runs.run(['run_name=real', 'max_steps=3', '--trace', '3'])
    expect(code, stderr).toBe(0)
    cpSync(join(runs.outputs, 'real'), join(runs.outputs, 'again'), { recursive: true })
    const config = join(runs.outputs, 'again', 'config.toml')
    writeFileSync(config, readFileSync(config, 'utf8').replace(/learning_rate = .*/, 'learning_rate = 0.5'))
    longRun(join(runs.outputs, 'nested', 'long-1'), seed)
    longRun(join(runs.outputs, 'nested', 'long-2'), seed + 1, 5e-4)
    hostileRun(join(runs.outputs, HOSTILE_NAME), runs.path('tiny'))
    view = await startView({ outputs: runs.outputs, everyMs: 50, tokenizer: tokenBytes })
    browser = await launch()
  })
  afterAll(async () => {
    await browser?.close()
    await view?.close()
  })

  test("a run's report opens in a tab of its own, and its plots are saved from there as from a file", async () => {
    const { page } = await openPage(browser, view.url)
    await goTo(page, places('real').at(-1)!)
    const [report] = await Promise.all([page.waitForEvent('popup'), page.getByRole('link', { name: 'report.html' }).click()])
    const [saved] = await Promise.all([
      report.waitForEvent('download'),
      report.getByRole('link', { name: 'SVG' }).first().click(),
    ])
    expect(saved.suggestedFilename()).toBe('reward.svg')
    expect(readFileSync(await saved.path(), 'utf8')).toContain('<svg')
  })

  test('by mouse: runs are chosen, their curves drawn together, and a point opens the rollouts of its step', async () => {
    const { page } = await openPage(browser, view.url)
    await expectText(page, 'main', '5 in all')
    expect(page.url()).not.toContain('key=')
    const row = page.locator('tr', { hasText: 'real' })
    expect(await row.textContent()).toMatch(/finished.*3 \/ 3/)
    await page.getByRole('checkbox', { name: 'Choose nested/long-1' }).click()
    await page.getByRole('checkbox', { name: 'Choose nested/long-2' }).click()
    await expectText(page, '.actions', '2 chosen')
    await page.getByRole('link', { name: 'Curves', exact: true }).last().click()
    const plot = page.locator('.plot').first()
    await plot.locator('canvas').waitFor()
    await settled(page)
    // Both lines are there, in their own colours, and the healthy range is shaded where there is one.
    const [first, second] = [await inkOf(page, '.plot', '--run-0'), await inkOf(page, '.plot', '--run-1')]
    expect(Math.min(first, second)).toBeGreaterThan(100)
    await page.getByRole('button', { name: 'nested/long-1' }).click()
    await settled(page)
    expect(await inkOf(page, '.plot', '--run-0')).toBe(0)
    expect(await inkOf(page, '.plot', '--run-1')).toBeGreaterThan(100)
    await page.getByRole('button', { name: 'nested/long-1' }).click()
    await settled(page)

    const over = page.locator('.plot .u-over').first()
    const { width, height } = (await over.boundingBox())!
    await over.hover({ position: { x: width / 2, y: height / 2 } })
    const tip = page.locator('.tip').first()
    const said = (await tip.textContent())!
    expect(said).toMatch(/^\s*step 1[45]\d\d\s*nested\/long-\d\s*0\.[89]\d*.*nested\/long-\d\s*0\.[89]\d*/)
    await over.click({ position: { x: width / 2, y: height / 2 } })
    await page.waitForURL(/#\/rollouts/)
    // One of the steps that stood there: where a curve is thinned, each run has its own nearest one.
    expect(said.match(/step \d+/g)).toContain(`step ${/step=(\d+)/.exec(page.url())![1]}`)
  })

  test('smoothing, axes, a logarithm and other metrics are in the address, and are there again after a reload', async () => {
    const { page } = await openPage(browser, view.url)
    await goTo(page, '#/curves?runs=nested%252Flong-1')
    await page.locator('.plot canvas').first().waitFor()
    // Often enough that a browser would refuse the addresses.
    await page.getByLabel('Smoothing').focus()
    for (const key of ['End', ...Array.from({ length: 39 }, () => 'ArrowLeft')]) await page.keyboard.press(key)
    await expectText(page, '.toolbar', 'Smoothing 0.6')
    await page.getByRole('radio', { name: 'tokens' }).check({ force: true })
    await page.getByRole('checkbox', { name: 'Logarithmic' }).check()
    await page.locator('summary', { hasText: 'Metrics' }).click()
    await page.locator('.popover-body input[type=search]').fill('throughput')
    const names = page.locator('.metric-list label')
    expect(await names.allTextContents()).toEqual([expect.stringContaining('perf/generation_throughput')])
    await names.first().click()
    await page.keyboard.press('Escape')
    await expect.poll(() => page.url(), { timeout: 60_000 }).toMatch(/keys=.*throughput|smooth=0.6.*keys=/)
    await page.reload()
    await page.locator('.plot canvas').first().waitFor()
    expect(await page.getByRole('checkbox', { name: 'Logarithmic' }).isChecked()).toBe(true)
    expect(await page.getByRole('radio', { name: 'tokens' }).isChecked()).toBe(true)
    const shown = await page.locator('.metric').allTextContents()
    expect(shown).not.toContain('perf/generation_throughput')
    expect(shown).toContain('reward')
    expect(await inkOf(page, '.plot', '--run-0')).toBeGreaterThan(100)
  })

  test('a metric is shown whatever its name: also with a comma, which separates names in addresses', async () => {
    const { page } = await openPage(browser, view.url)
    await goTo(page, `#/curves?runs=${encodeURIComponent(encodeURIComponent(HOSTILE_NAME))}`)
    await page.locator('summary', { hasText: 'Metrics' }).click()
    await page.locator('.popover-body input[type=search]').fill('50%')
    await page.locator('.metric-list label').click()
    await page.keyboard.press('Escape')
    const chart = page.getByRole('figure', { name: 'reward/50%, or %41' })
    await expect.poll(() => chart.locator('.lasts').textContent(), { timeout: 20_000 }).toBe('6')
    await page.reload()
    await expect.poll(() => chart.locator('.lasts').textContent(), { timeout: 20_000 }).toBe('6')
  })

  test('a smoothed curve is a mean of all steps, also where they are more than are drawn', async () => {
    const rows = readFileSync(join(runs.outputs, 'nested', 'long-1', 'metrics.jsonl'), 'utf8')
      .trimEnd()
      .split('\n')
    const all = rows.map((line) => (JSON.parse(line) as Record<string, number>)['optim/grad_norm'])
    const { page } = await openPage(browser, view.url)
    await goTo(page, '#/curves?runs=nested%252Flong-1&keys=optim/grad_norm')
    await page.locator('.plot canvas').waitFor()
    await goTo(page, '#/curves?runs=nested%252Flong-1&keys=optim/grad_norm&smooth=0.97')
    await expectText(page, '.lasts', num(smoothed(all, 0.97).at(-1), 3))
  })

  test('by keyboard alone: from the runs to a token', async () => {
    const { page } = await openPage(browser, view.url)
    const press = async (...keys: string[]) => {
      for (const key of keys) await page.keyboard.press(key)
      await settled(page)
    }
    await press('/')
    await page.keyboard.type('real')
    await press('Escape', 'j', 'x', 'g', 'c')
    expect(page.url()).toContain('#/curves?runs=real')
    await page.locator('.plot canvas').first().waitFor()
    await press('j', 'ArrowRight', 'ArrowRight')
    await expectText(page, '.chart [role=status]', /step 2: real/)
    await press('Enter')
    expect(page.url()).toMatch(/#\/rollouts\?.*step=2/)
    await expectText(page, '.found', /^8 found/)
    await page.locator('.tok').first().waitFor()
    await press('j')
    expect(page.url()).toMatch(/at=2\.1/)
    await press('l')
    expect(page.url()).toMatch(/at=2\.2/)
    await press('k', '3')
    expect(await page.getByRole('radio', { name: 'Advantage' }).isChecked()).toBe(true)

    // The token under the cursor is said with what the run's own file has of it.
    const at = Number(/at=2\.(\d+)/.exec(page.url())![1])
    const row = (runs.rows('real', 'rollouts/step_2.tokens.jsonl') as unknown as TokensRow[])[at]
    await page.locator('.tokens').focus()
    await press('Home', ...row.prompt_ids.map(() => 'ArrowRight'))
    const facts = page.locator('.token-facts')
    await expectText(page, '.token-facts', new RegExp(`id${row.completion_ids[0]}.*trained on`))
    expect((await facts.textContent())!.replaceAll('\u2212', '-')).toContain(`logprob${Number(row.logprobs[0].toPrecision(4))}`)

    await press('m')
    expect(await page.locator('.message').count()).toBeGreaterThan(1)
    await press('g', 't')
    await expectText(page, '.title-row', /step 2, \d+ spans/)
    await press(']')
    await expectText(page, '.title-row', /step 3/)
    await press('+', '+')
    await expectText(page, '.zoom', /of/)
    await press('g', 'k')
    expect(await page.locator('.kernels tbody tr').count()).toBeGreaterThan(5)
    await press('?')
    expect(await page.getByRole('dialog').isVisible()).toBe(true)
    await press('Escape')
    expect(await page.getByRole('dialog').count()).toBe(0)
    await press('g', 'r')
    expect(await page.title()).toBe('Runs \u00b7 dawn-rl')
  })

  test('kernels are sorted by what one asks, and configs compared', async () => {
    const { page } = await openPage(browser, view.url)
    await goTo(page, '#/kernels?run=real')
    const cells = async (n: number) =>
      (await page.locator(`.kernels tbody tr > :nth-child(${n})`).allTextContents()).map((text) => text.replaceAll(',', ''))
    const times = (await cells(3)).map(Number)
    expect(times).toEqual(times.toSorted((a, b) => b - a))
    await page.getByRole('button', { name: 'Calls' }).click()
    await page.getByRole('button', { name: 'Calls' }).click()
    const calls = (await cells(2)).map(Number)
    expect(calls).toEqual(calls.toSorted((a, b) => a - b))
    expect(await page.locator('th[aria-sort=ascending]').textContent()).toContain('Calls')
    await goTo(page, '#/config?runs=real,again')
    await expectText(page, '.differences', /learning_rate\s*0\.01\s*0\.5/)
    expect(await page.locator('.differences tbody tr').count()).toBeLessThan(4)
    await page.locator('main input[type=search]').fill('lora_rank')
    await expectText(page, '.flat', /^\s*trainer\.args\.lora_rank\s*4\s*$/)
  })

  test('a long list is drawn in part and read a page at a time; filters and order are the server\u2019s', async () => {
    const { page, asked } = await openPage(browser, view.url)
    const total = LONG.rolloutSteps * LONG.rollouts
    await goTo(page, '#/rollouts?run=nested%2Flong-1')
    await expectText(page, '.found', new RegExp(`^${total.toLocaleString('en')} found`))
    expect(await page.locator('.rollout-row').count()).toBeLessThan(40)
    await page.locator('.rollout-list').evaluate((list) => list.scrollTo(0, list.scrollHeight))
    await page.locator(`.rollout-row[data-i="${total - 1}"] a`).waitFor()
    expect(await page.locator('.rollout-row').count()).toBeLessThan(40)
    expect(asked.some((path) => path.includes(`offset=${total - 100}`))).toBe(true)
    await page.getByLabel('Text', { exact: true }).fill('What is 7 + 3?')
    await expectText(page, '.found', /^1 found/)
    await page.getByLabel('Text', { exact: true }).fill('')
    await page.locator('summary', { hasText: 'More filters' }).click()
    await page.getByLabel('Reward from').fill('0.9')
    await page.keyboard.press('Enter')
    await expectText(page, '.found', new RegExp(`^${total / 5} found`))
    await page.getByLabel('Step').first().selectOption('12')
    await expectText(page, '.found', /^8 found/)
    await page.getByLabel('Order').selectOption('-tokens')
    expect(page.url()).toMatch(/sort=-tokens/)
  })

  test('rollouts: back leaves the view, j and k go on from the one that is open, Escape leaves it, a search opens what it finds', async () => {
    const { page } = await openPage(browser, view.url)
    const id = 'nested%2Flong-1'
    const isAt = (at: string) => expect.poll(() => page.url(), { timeout: 60_000 }).toMatch(new RegExp(`at=${at}$`))
    await goTo(page, '#/kernels?run=real')
    await goTo(page, `#/rollouts?run=${id}&step=30`)
    await isAt('30\\.0')
    await page.goBack()
    await page.waitForURL(/#\/kernels/)
    await settled(page)
    expect(page.url()).toContain('#/kernels')

    // By its address, and far enough down that the list has to move.
    await goTo(page, `#/rollouts?run=${id}&step=30&at=30.20`)
    await page.locator('.rollout-row a[aria-current=true]', { hasText: 'What is 30 + 20?' }).waitFor()
    for (const [key, at] of [['j', '21'], ['l', '22'], ['l', '23'], ['j', '24'], ['k', '23'], ['Escape', '23']]) {
      await page.keyboard.press(key)
      await isAt(`30\\.${at}`)
      await settled(page)
    } // prettier-ignore
    await isAt('30\\.23')

    await goTo(page, `#/rollouts?run=${id}`)
    await isAt('30\\.0')
    await page.getByLabel('Text', { exact: true }).fill('What is 7 + 3?')
    await isAt('7\\.3')
    await page.getByLabel('Text', { exact: true }).fill('nowhere')
    await expectText(page, '.found', /^0 found/)
    expect(page.url()).not.toContain('at=')
  })

  test('rollouts: every filter that holds is seen, and another run takes away those that are of the one before', async () => {
    const { page } = await openPage(browser, view.url)
    const id = 'nested%2Flong-1'
    await goTo(page, `#/rollouts?run=${id}&at=30.5`)
    await page.locator('.facts a', { hasText: '30.1' }).click()
    await expectText(page, '.found', /^4 found in group 30\.1/)
    await page.getByRole('button', { name: 'All groups' }).click()
    await expectText(page, '.found', /found$/)
    expect(page.url()).not.toContain('group=')

    await goTo(page, `#/rollouts?run=${id}&step=1500&env=other`)
    await expectText(page, '.found', /^0 found/)
    expect(await page.getByLabel('Step').first().inputValue()).toBe('1500')
    expect(await page.getByLabel('Environment').inputValue()).toBe('other')
    await page.getByLabel('Run').selectOption('real')
    await expectText(page, '.found', /^\d+ found/)
    expect(page.url()).not.toMatch(/env=|step=/)
  })

  test('a search that the server ends early goes on by itself until all is found', async () => {
    const hasty = await startView({ outputs: runs.outputs, everyMs: 50, searchMs: 25 })
    onTestFinished(() => hasty.close())
    const { page } = await openPage(browser, hasty.url)
    await goTo(page, '#/rollouts?run=nested%2Flong-1')
    await expectText(page, '.found', new RegExp(`^${(LONG.rolloutSteps * LONG.rollouts).toLocaleString('en')} found$`))
  })

  test('lives: a step, rollouts and a run show up by themselves', async () => {
    const { page } = await openPage(browser, view.url)
    const id = 'nested/long-2'
    const row = page.locator('tr', { hasText: id })
    await expectText(page, '.bottom', /live/)
    appendFileSync(join(runs.outputs, id, 'metrics.jsonl'), `${JSON.stringify(longRow(LONG.steps + 1, new Random(seed)))}\n`)
    await row.getByText((LONG.steps + 1).toLocaleString('en'), { exact: false }).waitFor()
    await goTo(page, '#/curves?runs=nested%252Flong-2&keys=reward')
    await page.locator('.plot canvas').first().waitFor()
    appendFileSync(
      join(runs.outputs, id, 'metrics.jsonl'),
      `${JSON.stringify({ ...longRow(LONG.steps + 2, new Random(seed)), reward: 7.25 })}\n`,
    )
    await page.locator('.lasts', { hasText: '7.25' }).waitFor()
    await goTo(page, '#/runs')
    // What changes after the list was read and before the page listens is seen, too.
    await page.route('**/api/events*', async (route) => {
      appendFileSync(join(runs.outputs, id, 'metrics.jsonl'), `${JSON.stringify(longRow(LONG.steps + 3, new Random(seed)))}\n`)
      await route.continue()
    })
    await page.reload()
    await row.getByText((LONG.steps + 3).toLocaleString('en'), { exact: false }).waitFor()
    await page.unroute('**/api/events*')
    longRun(join(runs.outputs, 'later'), seed + 2)
    await page.locator('tr', { hasText: 'later' }).waitFor()
    await expectText(page, 'main', '6 in all')
    await goTo(page, '#/rollouts?run=later')
    await expectText(page, '.found', /found/)
    cpSync(join(runs.outputs, 'later/rollouts/step_1.jsonl'), join(runs.outputs, 'later/rollouts/step_77.jsonl'))
    await page.getByLabel('Step').first().locator('option', { hasText: '77' }).waitFor({ state: 'attached' })
  })

  test('hostile text stays text, broken lines are left out, and turns are a tree', async () => {
    const { page } = await openPage(browser, view.url)
    for (const place of places(HOSTILE_NAME)) {
      await goTo(page, place)
      expect(await page.evaluate(() => 'pwned' in globalThis)).toBe(false)
      // Only our own: the brand.
      expect(await page.locator('img').count()).toBe(1)
      expect(await overflow(page)).toBe(0)
    }
    await goTo(page, `#/rollouts?run=${encodeURIComponent(HOSTILE_NAME)}&step=1`)
    await expectText(page, '.found', /^8 found/)
    const found = (await page.locator('.rollout-row .answer').allTextContents()).join('\n')
    expect(found).toContain(HOSTILE[0])
    // An override of the direction is shown, not followed.
    expect(found).toContain('abc\u27e8202e\u27e9gnp.exe\u2400\u2407\u241b')
    for (let row = 0; row < 8; row++) {
      await goTo(page, `#/rollouts?run=${encodeURIComponent(HOSTILE_NAME)}&at=1.${row}`)
      await page.locator('.rollout h2', { hasText: `answer ${(row & 3) + 1}` }).waitFor()
      await page.keyboard.press('m')
      await page.keyboard.press('m')
    }
    await expectText(page, '.rollout .problem', HOSTILE[1])

    await goTo(page, `#/rollouts?run=${encodeURIComponent(HOSTILE_NAME)}&at=2.0`)
    await page.locator('.rollout h2', { hasText: 'Step 2' }).waitFor()
    expect(await page.locator('.turn-node').count()).toBe(3)
    expect(await page.locator('.turn-node.branch').count()).toBe(2)
    expect(await page.locator('.piece h3').allTextContents()).toEqual([
      expect.stringMatching(/prompt · turn 1/), expect.stringMatching(/answer · turn 1/), expect.stringMatching(/environment · turn 2/),
      expect.stringMatching(/answer · turn 2/), expect.stringMatching(/prompt · turn 3 · a new sequence/), expect.stringMatching(/answer · turn 3/),
    ]) // prettier-ignore
    await page.getByRole('radio', { name: 'Ratio' }).check({ force: true })
    expect(await page.locator('.kind-sampled .tok').evaluateAll((all) => all.map((one) => (one.classList.contains('cool') ? 'likelier' : 'less likely')))).toEqual([
      'less likely', 'less likely', 'less likely', 'likelier', 'likelier', 'likelier',
    ]) // prettier-ignore
    expect(await page.evaluate(() => 'pwned' in globalThis)).toBe(false)
  })

  test.for([
    { name: 'narrow and light', viewport: { width: 360, height: 740 }, colorScheme: 'light' as const },
    { name: 'narrow and dark', viewport: { width: 360, height: 740 }, colorScheme: 'dark' as const },
    { name: 'wide and light', viewport: { width: 1280, height: 800 }, colorScheme: 'light' as const },
    { name: 'wide and dark', viewport: { width: 1280, height: 800 }, colorScheme: 'dark' as const },
  ])('$name: every view fits, can be read, and has names for all that can be used', async ({ viewport, colorScheme }) => {
    const { page } = await openPage(browser, view.url, { viewport, colorScheme })
    for (const place of places('real')) {
      await goTo(page, place)
      await page.evaluate(() => document.querySelectorAll('details').forEach((one) => (one.open = true)))
      await settled(page)
      expect({ place, wider: await overflow(page) }).toEqual({ place, wider: 0 })
      expect({ place, low: await lowContrast(page) }).toEqual({ place, low: [] })
      expect({ place, barriers: await barriers(page) }).toEqual({ place, barriers: [] })
    }
    for (const place of places(HOSTILE_NAME)) {
      await goTo(page, place)
      expect({ place, wider: await overflow(page) }).toEqual({ place, wider: 0 })
    }
    if (viewport.width < 1000) {
      // List and rollout one after the other; Escape goes back.
      await goTo(page, '#/rollouts?run=real&step=1')
      await page.locator('.rollout-row a').nth(2).click()
      await page.locator('.rollout h2', { hasText: 'answer 3' }).waitFor()
      expect(await page.locator('.rollout-list').count()).toBe(0)
      await page.keyboard.press('Escape')
      await page.locator('.rollout-row').first().waitFor()
      // To where one was in the list.
      await goTo(page, '#/rollouts?run=nested%2Flong-1')
      await page.locator('.rollout-list').evaluate((list) => list.scrollTo(0, 6400))
      await page.locator('.rollout-row[data-i="100"] a').click()
      await page.locator('.rollout h2').waitFor()
      await page.keyboard.press('Escape')
      await page.locator('.rollout-row[data-i="100"]').waitFor()
      // By keyboard: from the row where one was, to the one after it.
      for (const i of [100, 101]) {
        await page.keyboard.press('j')
        await page.locator(`.rollout-row[data-i="${i}"] a:focus`).waitFor()
      }
      await page.keyboard.press('Enter')
      await page.locator('.rollout h2', { hasText: 'Step 28' }).waitFor()
    }
    // The colours of tokens, at their strongest.
    await goTo(page, `#/rollouts?run=${encodeURIComponent(HOSTILE_NAME)}&at=1.2`)
    for (const key of ['1', '2', '3']) {
      await page.keyboard.press(key)
      await settled(page)
      expect(await lowContrast(page)).toEqual([])
    }
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor)
    expect(ground.match(/\d+/g)!.every((part) => Number(part) < 128 === (colorScheme === 'dark'))).toBe(true)
  })
})

/** Waits until the first of the elements has the text. */
async function expectText(page: Page, selector: string, text: string | RegExp): Promise<void> {
  await expect.poll(async () => (await page.locator(selector).first().textContent()) ?? '', { timeout: 60_000 }).toMatch(text instanceof RegExp ? text : new RegExp(text.replaceAll(/[$()*+.?[\\\]^{|}]/g, '\\$&'))) // prettier-ignore
}

/** Pixels of the first chart that have a run's colour. */
async function inkOf(page: Page, selector: string, colour: string): Promise<number> {
  return await page.evaluate(
    ([chart, name]) => {
      const drawn = document.querySelector<HTMLCanvasElement>(`${chart} canvas`)!
      const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim()
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16))
      const copy = new OffscreenCanvas(drawn.width, drawn.height).getContext('2d', { willReadFrequently: true })!
      copy.drawImage(drawn, 0, 0)
      const { data } = copy.getImageData(0, 0, drawn.width, drawn.height)
      let found = 0
      for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] > 200 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 24) found++
      }
      return found
    },
    [selector, colour],
  )
}
