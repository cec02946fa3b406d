/**
 * Sorting names over several turns: each turn adds some names, and asks for all names so far in alphabetical order. The answer is between <sorted>
 * and </sorted>, one name per line. Without the tags the whole text is taken as the answer.
 * Reward: 0.9 x the mean of similarity ^ power over the turns + 0.1 x the fraction of turns with the tags. similarity = 2 LCS / (number of names in
 * the answer + number of names asked for), where LCS is the length of the longest common subsequence of names. Turns that were not played count as 0.
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { type Message, MultiTurnEnv, parseArgs, Random, Rubric, UserError, z } from '../src/environments/index.ts'

const shape = {
  min_turns: z.int().min(1).max(20).default(2).describe('Turns of the shortest task.'),
  max_turns: z.int().min(1).max(20).default(3).describe('Turns of the longest task.'),
  min_names: z.int().min(1).max(20).default(2).describe('Names that a turn adds, at least.'),
  max_names: z.int().min(1).max(20).default(3).describe('And at most.'),
  by: z.enum(['first', 'last']).default('first').describe('Names are sorted by this part of them.'),
  power: z
    .number()
    .positive()
    .default(2)
    .describe('Similarity is taken to this power: above 1, order counts more than presence.'),
  system_prompt: z.string().optional().describe('System message. None by default.'),
  train_size: z.int().min(1).default(500).describe('Tasks to train on.'),
  eval_size: z.int().min(0).default(64).describe('Held-out tasks.'),
  seed: z.int().default(0).describe('Decides the tasks.'),
}

// prettier-ignore
const firstNames = [
  'Ada', 'Amir', 'Anna', 'Ben', 'Bruno', 'Carla', 'Chen', 'Clara', 'Dana', 'Diego', 'Elena', 'Emil', 'Eva', 'Farid', 'Fiona', 'Gita', 'Hana', 'Hugo', 'Ida',
  'Igor', 'Iris', 'Jan', 'Jonas', 'Julia', 'Kai', 'Karim', 'Lara', 'Leo', 'Lucy', 'Maya', 'Marco', 'Mina', 'Nadia', 'Nils', 'Nora', 'Olga', 'Omar', 'Otto',
  'Paula', 'Pedro', 'Priya', 'Ravi', 'Rosa', 'Ruth', 'Sam', 'Sara', 'Sofia', 'Tara', 'Theo', 'Tom', 'Uma', 'Vera', 'Victor', 'Wanda', 'Yusuf', 'Zoe',
]
// prettier-ignore
const lastNames = [
  'Abbott', 'Alvarez', 'Bauer', 'Berg', 'Brown', 'Castro', 'Chang', 'Clark', 'Costa', 'Davis', 'Diaz', 'Evans', 'Farkas', 'Fischer', 'Garcia', 'Gupta',
  'Hansen', 'Hill', 'Horvat', 'Ito', 'Ivanov', 'Jensen', 'Jones', 'Kelly', 'Khan', 'Kim', 'Kowalski', 'Larsen', 'Lee', 'Lopez', 'Martin', 'Meyer', 'Moore',
  'Nguyen', 'Novak', 'Olsen', 'Ortiz', 'Park', 'Patel', 'Quinn', 'Reyes', 'Rossi', 'Sato', 'Silva', 'Smith', 'Tanaka', 'Taylor', 'Ueda', 'Vargas', 'Weber',
  'White', 'Wong', 'Young', 'Zhang',
]

interface Task {
  /** The names that each turn adds. */
  turns: string[][]
}

export default async function loadEnvironment(args: Record<string, unknown>): Promise<MultiTurnEnv> {
  const options = parseArgs('alphabet-sort', shape, args)
  for (const what of ['turns', 'names'] as const) {
    const [min, max] = [options[`min_${what}`], options[`max_${what}`]]
    if (min > max) throw new UserError(`environment alphabet-sort: min_${what} (${min}) is above max_${what} (${max}).`)
  }
  const key = (name: string) => (options.by === 'first' ? name : name.split(' ').toReversed().join(' '))
  const sorted = (names: string[]) => names.toSorted((a, b) => (key(a) < key(b) ? -1 : 1))
  /** All names so far in order, for each turn. */
  const wanted = ({ turns }: Task) => turns.map((_, i) => sorted(turns.slice(0, i + 1).flat()))
  const block = (names: string[]) => `<sorted>\n${names.join('\n')}\n</sorted>`
  const how = `by ${options.by} name, one a line, between <sorted> and </sorted>.`

  const score = (
    { completion, info }: { completion: Message[]; info: Record<string, unknown> },
    of: (text: string, names: string[]) => number,
  ) => {
    const said = completion.filter((message) => message.role === 'assistant')
    const lists = wanted(info as unknown as Task)
    return lists.reduce((sum, names, i) => sum + (said[i] ? of(said[i].content, names) : 0), 0) / lists.length
  }
  const tasks = makeTasks(options)
  const toRow = (task: Task) => ({
    prompt: `Sort these names alphabetically ${how}\n\n${task.turns[0].join('\n')}`,
    answer: block(wanted(task).at(-1)!),
    info: { ...task },
  })
  return await MultiTurnEnv.create({
    id: 'alphabet-sort',
    maxTurns: options.max_turns,
    rubric: new Rubric({
      order: {
        reward: (rollout) => score(rollout, (text, names) => similarity(namesIn(text), names) ** options.power),
        weight: 0.9,
      },
      form: { reward: (rollout) => score(rollout, (text) => Number(/<sorted>[^]*<\/sorted>/u.test(text))), weight: 0.1 },
    }),
    envResponse: (_, state) => {
      const more = (state.info as unknown as Task).turns[state.turn]
      return `Now sort all names so far together with these ${how}\n\n${more.join('\n')}`
    },
    stop: { all_sorted: (state) => state.turn === (state.info as unknown as Task).turns.length },
    sftCompletion: (row) => block(wanted(row.info as unknown as Task)[0]),
    systemPrompt: options.system_prompt,
    dataset: tasks.slice(options.eval_size).map(toRow),
    ...(options.eval_size > 0 ? { evalDataset: tasks.slice(0, options.eval_size).map(toRow) } : { evalSize: 0 }),
  })
}

function makeTasks(options: z.infer<z.ZodObject<typeof shape>>): Task[] {
  const random = new Random(options.seed)
  const between = (min: number, max: number) => min + random.int(max - min + 1)
  // A first name and a last name occur only once in a task, so that there is only one correct order.
  return Array.from({ length: options.train_size + options.eval_size }, () => {
    const sizes = Array.from({ length: between(options.min_turns, options.max_turns) }, () =>
      between(options.min_names, options.max_names),
    )
    const total = sizes.reduce((a, b) => a + b, 0)
    if (total > lastNames.length) {
      throw new UserError(
        `environment alphabet-sort: a task would have ${total} names, and there are ${lastNames.length}. Lower max_turns or max_names.`,
      )
    }
    const last = random.shuffle([...lastNames])
    const names = random
      .shuffle([...firstNames])
      .slice(0, total)
      .map((first, i) => `${first} ${last[i]}`)
    return { turns: sizes.map((size) => names.splice(0, size)) }
  })
}

/** The names in an answer: the lines of its last <sorted> block, or of the whole text. */
function namesIn(text: string): string[] {
  const block = /<sorted>((?:(?!<sorted>)[^])*?)<\/sorted>/gu
  const inside = [...text.matchAll(block)].at(-1)?.[1] ?? text
  return inside.split(/[\n,]/u).flatMap((line) => line.replace(/^[\s\d.)*-]+/u, '').trim() || [])
}

/** 2 LCS / (length of both), over names. */
function similarity(a: string[], b: string[]): number {
  const row = b.map(() => 0)
  for (const name of a.slice(0, 200)) {
    let diagonal = 0
    for (let j = 0; j < b.length; j++) {
      const above = row[j]
      row[j] = name === b[j] ? diagonal + 1 : Math.max(above, row[j - 1] ?? 0)
      diagonal = above
    }
  }
  return (2 * (row.at(-1) ?? 0)) / (a.length + b.length)
}
