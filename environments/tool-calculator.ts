/**
 * Arithmetic that is too long for mental calculation, with a calculator as a tool: "How much is 4821 * 37 - 915?". The model calls `calculate` with
 * an expression, reads the result, and answers.
 * Reward: 0.8 for the correct number (the last number of the last answer) + 0.2 for calling the tool without an error.
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { lastNumber, type Message, parseArgs, Random, Rubric, tool, ToolEnv, UserError, z } from '../src/environments/index.ts'

const operations = ['+', '-', '*'] as const

const shape = {
  operations: z.array(z.enum(operations)).min(1).default([...operations]).describe('Operations of an expression.'),
  terms: z.int().min(2).max(10).default(3).describe('Numbers of the longest expression; the shortest has two.'),
  max: z.int().min(2).max(1_000_000).default(999).describe('Largest number.'),
  max_turns: z.int().min(1).max(20).default(4).describe('Answers of the model at most.'),
  examples: z.int().min(0).max(5).default(0).describe('Sums that stand before the question, worked out with the tool: for models that never called one.'),
  system_prompt: z.string().default('Use the calculator, then answer with the number.').describe('System message.'),
  train_size: z.int().min(1).default(500).describe('Expressions to train on.'),
  eval_size: z.int().min(0).default(64).describe('Held-out expressions.'),
  seed: z.int().default(0).describe('Decides the expressions.'),
} // prettier-ignore

const calculate = tool({
  name: 'calculate',
  description: 'Works out an arithmetic expression of numbers, + - * / and brackets.',
  parameters: z.object({ expression: z.string().max(200).describe('Such as (12 + 3) * 4') }),
  run: ({ expression }) => valueOf(expression),
})

export default async function loadEnvironment(args: Record<string, unknown>): Promise<ToolEnv> {
  const options = parseArgs('tool-calculator', shape, args)
  const random = new Random(options.seed)
  const wanted = options.train_size + options.eval_size
  const expressions = new Set<string>()
  for (let tries = 0; expressions.size < wanted; tries++) {
    if (tries > 100 * wanted)
      throw new UserError(
        `environment tool-calculator: only ${expressions.size} different expressions, fewer than train_size + eval_size = ${wanted}. Raise max or terms.`,
      )
    const terms = 2 + random.int(options.terms - 1)
    const number = () => String(1 + random.int(options.max))
    expressions.add(
      Array.from({ length: terms - 1 }, () => `${random.pick(options.operations)} ${number()}`).reduce(
        (text, next) => `${text} ${next}`,
        number(),
      ),
    )
  }
  const shown = Array.from({ length: options.examples }, (_, i) => exampleOf(`${i + 2} * ${9 - i}`, `example_${i}`)).flat()
  const rows = [...expressions].map((expression) => ({
    prompt: [...shown, { role: 'user' as const, content: `How much is ${expression}?` }],
    answer: valueOf(expression),
    info: { expression },
  }))
  return await ToolEnv.create({
    id: 'tool-calculator',
    tools: [calculate],
    maxTurns: options.max_turns,
    rubric: new Rubric({
      correct: { reward: ({ text, answer }) => Number(lastNumber(text) === Number(answer)), weight: 0.8 },
      used: {
        reward: ({ completion }) =>
          Number(completion.some(({ role, content }) => role === 'tool' && !content.startsWith('Error'))),
        weight: 0.2,
      },
    }),
    systemPrompt: options.system_prompt,
    dataset: rows.slice(options.eval_size),
    ...(options.eval_size > 0 ? { evalDataset: rows.slice(0, options.eval_size) } : { evalSize: 0 }),
  })
}

/** A problem solved with the tool, as messages. */
function exampleOf(expression: string, id: string): Message[] {
  const call = { id, type: 'function' as const, function: { name: 'calculate', arguments: JSON.stringify({ expression }) } }
  return [
    { role: 'user', content: `How much is ${expression}?` },
    { role: 'assistant', content: '', tool_calls: [call] },
    { role: 'tool', tool_call_id: id, name: 'calculate', content: String(valueOf(expression)) },
    { role: 'assistant', content: `It is ${valueOf(expression)}.` },
  ]
}

/** Evaluates an expression: sums of products of numbers and brackets. Throws an error with a sentence for anything else. */
function valueOf(expression: string): number {
  const tokens = expression.match(/\d+(?:\.\d+)?|[-+*/()]|\S/gu) ?? []
  let [at, depth] = [0, 0]
  const fail = () => new Error(`"${expression}" is no arithmetic expression (at ${tokens[at] ?? 'its end'})`)
  const sum = (): number => {
    let value = product()
    while (tokens[at] === '+' || tokens[at] === '-') value = tokens[at++] === '+' ? value + product() : value - product()
    return value
  }
  const product = (): number => {
    let value = factor()
    while (tokens[at] === '*' || tokens[at] === '/') value = tokens[at++] === '*' ? value * factor() : value / factor()
    return value
  }
  const factor = (): number => {
    const token = tokens[at] ?? ''
    if (!/^[-(\d]/u.test(token)) throw fail()
    at++
    if (token === '-') return -factor()
    if (token === '(') {
      if (++depth > 50) throw new Error('too many brackets')
      const value = sum()
      if (tokens[at++] !== ')') throw fail()
      depth--
      return value
    }
    return Number(token)
  }
  const value = sum()
  if (at < tokens.length) throw fail()
  if (!Number.isFinite(value)) throw new Error(`${expression} has no value`)
  return value
}
