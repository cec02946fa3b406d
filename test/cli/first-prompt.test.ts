/** What a run and `env check` show of an environment's first task. */
import { expect, test } from 'vitest'
import { firstPrompt, firstPrompts } from '../../src/cli/first-prompt.ts'
import { ChatTemplate, Rubric, SingleTurnEnv } from '../../src/environments/index.ts'
import { openTiny } from '../inference/tokenizers.ts'

const rubric = new Rubric({ one: () => 1 })
const environment = (prompt: string, answer?: string) =>
  SingleTurnEnv.create({ id: 'odd', rubric, dataset: [{ prompt, answer }], evalSize: 0, systemPrompt: 'Be brief.' })

test('the first task is shown as the tokens that the model gets say it, and of much the middle is left out', async () => {
  const tokenizer = await openTiny()
  const model = { tokenizer, template: new ChatTemplate(tokenizer) }
  const env = await environment('a\nb\u001b[31m', 'c\u009b')
  const [head, ...lines] = firstPrompt({ name: 'first', env }, model)
  const ids = model.template.prompt(env.dataset[0].prompt).ids
  expect(head).toBe(
    `first prompt of first: ${ids.length} tokens, ${ids.filter((id) => tokenizer.isSpecial(id)).length} of them special; answer "c\ufffd"`,
  )
  // A control character is a picture: what a row holds must not steer the terminal.
  const shown = tokenizer.decode(ids).replace('\u001b', '␛')
  expect(lines.map((line) => line.slice(4)).join('\n')).toBe(shown)
  expect(shown).toContain('<|user|>')
  expect(lines.every((line) => line.startsWith('  | '))).toBe(true)

  const long = await environment(`first ${'x'.repeat(400)}\n${'line\n'.repeat(50)}the question`)
  const few = firstPrompt({ name: 'long', env: long }, model)
  expect(few).toHaveLength(12)
  expect(few.join('\n')).toContain('the question')
  expect(few.join('\n')).toMatch(/ {2}: \d+ lines more/)
  expect(few.find((line) => line.includes('first x'))).toMatch(/ … \d+ characters … x+$/)
  expect(Math.max(...few.map((line) => line.length))).toBeLessThan(200)
  const whole = firstPrompt({ name: 'long', env: long }, model, { lines: Infinity, width: Infinity })
  expect(whole.join('\n')).toContain('x'.repeat(400))

  const many = Array.from({ length: 9 }, (_, i) => ({ name: `n${i}`, env: long, weight: 1 }))
  expect(firstPrompts(many, model)).toHaveLength(9 * 6)
})
