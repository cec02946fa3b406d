/**
 * Word problems with one to three steps, generated from a seed: shopping, travelling, sharing, saving and so on. The last number in the completion is
 * taken as the answer.
 * Reward: 0.9 for the correct number + 0.1 for the form (the completion ended by itself, with a number in it).
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { lastNumber, parseArgs, Random, type RowInput, Rubric, SingleTurnEnv, UserError, z } from '../src/environments/index.ts'

/** Draws a whole number from a range. */
type Draw = (min: number, max: number) => number
/** Makes a problem of one kind. Its numbers grow with `scale`. */
type Kind = (draw: Draw, name: string, scale: number) => { text: string; result: number }

const kinds: Record<string, Kind> = {
  sum: (draw, name, scale) => {
    const [a, b] = [draw(2, 20 * scale), draw(2, 20 * scale)]
    return { text: `${name} has ${a} marbles and gets ${b} more. How many marbles does ${name} have now?`, result: a + b }
  },
  shopping: (draw, name, scale) => {
    const [pens, books, pen, book] = [draw(2, 5 * scale), draw(1, 4), draw(1, 3 * scale), draw(4, 9)]
    const result = pens * pen + books * book
    return { text: `A pen costs $${pen} and a book costs $${book}. ${name} buys ${pens} pens and ${books} books. How many dollars does ${name} pay?`, result }
  },
  change: (draw, name, scale) => {
    const [count, price] = [draw(2, 6), draw(2, 4 * scale)]
    const paid = count * price + draw(1, 20)
    return { text: `${name} buys ${count} tickets for $${price} each and pays with $${paid}. How many dollars does ${name} get back?`, result: paid - count * price }
  },
  travel: (draw, name, scale) => {
    const [speed, hours, rest] = [10 * draw(2, 3 * scale), draw(2, 5), draw(1, 9)]
    return { text: `${name} drives at ${speed} km per hour for ${hours} hours and then walks ${rest} km. How many km is that in all?`, result: speed * hours + rest }
  },
  sharing: (draw, name, scale) => {
    const [friends, each, eaten] = [draw(2, 6), draw(2, 5 * scale), draw(1, 9)]
    return { text: `${name} bakes ${friends * each + eaten} cookies, eats ${eaten} of them, and shares the rest equally among ${friends} friends. How many cookies does each friend get?`, result: each }
  },
  saving: (draw, name, scale) => {
    const [weekly, weeks, spent] = [draw(3, 6 * scale), draw(3, 8), draw(1, 9)]
    return { text: `${name} saves $${weekly} every week for ${weeks} weeks and then spends $${spent}. How many dollars are left?`, result: weekly * weeks - spent }
  },
  ages: (draw, name, scale) => {
    const [age, older, years] = [draw(5, 10 * scale), draw(2, 12), draw(2, 9)]
    return { text: `${name} is ${age} years old. A sister is ${older} years older. How old will the sister be in ${years} years?`, result: age + older + years }
  },
  rows: (draw, name, scale) => {
    const [rows, seats, taken] = [draw(3, 4 * scale), draw(4, 9), draw(2, 11)]
    return { text: `A hall has ${rows} rows of ${seats} seats. ${name} counts ${taken} people sitting. How many seats are free?`, result: rows * seats - taken }
  },
} // prettier-ignore

const names = [
  'Ana',
  'Ben',
  'Carla',
  'Deniz',
  'Emma',
  'Farid',
  'Grace',
  'Hiro',
  'Ines',
  'Jonas',
  'Kofi',
  'Lena',
  'Mara',
  'Noah',
  'Olga',
  'Paul',
]
const all = Object.keys(kinds)

const shape = {
  kinds: z.array(z.enum(all as [string, ...string[]])).min(1).default(all).describe('Kinds of problems.'),
  scale: z.int().min(1).max(1000).default(2).describe('How large the numbers get.'),
  instruction: z.string().default('').describe('Stands behind the problem, after a space.'),
  system_prompt: z.string().optional().describe('System message. None by default.'),
  train_size: z.int().min(1).default(1000).describe('Problems to train on.'),
  eval_size: z.int().min(0).default(64).describe('Held-out problems.'),
  seed: z.int().default(0).describe('Decides the problems.'),
} // prettier-ignore

export default async function loadEnvironment(args: Record<string, unknown>): Promise<SingleTurnEnv> {
  const options = parseArgs('math-word-problems', shape, args)
  const random = new Random(options.seed)
  const draw: Draw = (min, max) => min + random.int(Math.max(1, max - min + 1))
  const wanted = options.train_size + options.eval_size
  const rows = new Map<string, RowInput>()
  for (let tries = 0; rows.size < wanted; tries++) {
    if (tries > 100 * wanted)
      throw new UserError(
        `environment math-word-problems: only ${rows.size} different problems, fewer than train_size + eval_size = ${wanted}. Raise scale or lower the sizes.`,
      )
    const kind = random.pick(options.kinds)
    const { text, result } = kinds[kind](draw, random.pick(names), options.scale)
    rows.set(text, { prompt: `${text} ${options.instruction}`.trim(), answer: result, info: { kind } })
  }
  const list = [...rows.values()]
  return await SingleTurnEnv.create({
    id: 'math-word-problems',
    rubric: new Rubric({
      correct: { reward: ({ text, answer }) => Number(lastNumber(text) === Number(answer)), weight: 0.9 },
      form: { reward: ({ text, finishReason }) => Number(finishReason === 'stop' && lastNumber(text) !== null), weight: 0.1 },
    }),
    systemPrompt: options.system_prompt,
    dataset: list.slice(options.eval_size),
    ...(options.eval_size > 0 ? { evalDataset: list.slice(0, options.eval_size) } : { evalSize: 0 }),
  })
}
