/**
 * Wordle: guess a word of five letters in six turns. Each guess is between <guess> and </guess>, and the reply has a mark for each letter: G for the
 * right letter in the right place, Y for a letter that the word has in another place, X for a letter that it does not have.
 * Reward: 1 for the word + 0.2 x (turns left / turns) if it was found + 0.4 x the best guess's fraction of correct letters (G 1, Y 1/2) + 0.2 x the
 * fraction of turns with a guess of five letters.
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { MultiTurnEnv, parseArgs, Random, Rubric, z } from '../src/environments/index.ts'

const shape = {
  max_turns: z.int().min(1).max(20).default(6).describe('Guesses.'),
  hint: z.boolean().default(false).describe("Whether the word's first letter is told."),
  system_prompt: z.string().optional().describe('System message. None by default.'),
  eval_size: z.int().min(1).max(100).default(32).describe('Held-out words.'),
  seed: z.int().default(0).describe('Decides which words are held out.'),
}

const words = (
  'about above actor adult after again agent agree ahead alarm album alive allow alone along angle angry apart apple arena argue arise armor aside audio ' +
  'avoid award aware badge baker basic beach began begin being below bench berry birth black blade blame blank blind block blood board brain brand brave ' +
  'bread break brick bride brief bring broad broke brown brush build bunch burst cabin cable camel candy cargo carry catch cause chain chair chalk charm ' +
  'chase cheap check cheer chess chest chief child civil claim class clean clear climb clock close cloth cloud coach coast color couch could count court ' +
  'cover crack craft crane crash cream crime crowd crown curve cycle daily dance delay depth dirty doubt dozen draft drama dream dress drink drive eager ' +
  'eagle early earth eight elbow empty enemy enjoy enter equal error event every exact extra faith false fancy fault fence fever field fight final first ' +
  'flame flash fleet floor flour fluid focus force forth frame fresh front frost fruit giant glass globe glory grace grade grain grand grant grape grass ' +
  'great green greet group guard guess guest guide habit happy harsh heart heavy honey horse hotel house human humor ideal image index inner input issue ' +
  'jelly jewel joint judge juice knife knock label labor large laser later laugh layer learn lemon level light limit local logic loose lower lucky lunch ' +
  'magic major maple march match maybe mayor medal media metal meter minor model money month moral motor mount mouse mouth movie music nerve never night ' +
  'noble noise north novel nurse ocean offer often olive onion order organ other outer owner paint panel paper party peace pearl phase phone photo piano ' +
  'piece pilot pitch place plain plane plant plate point pound power press price pride prime print prize proof proud queen quick quiet quite radio raise ' +
  'range rapid ratio reach ready refer reply rider ridge right rival river robot rough round route royal rural salad scale scene scope score sense serve ' +
  'seven shade shake shape share sharp sheep sheet shelf shell shift shine shirt shock shoot shore short shout sight silly skill sleep slice slide small ' +
  'smart smile smoke snake solid solve sorry sound south space spare speak speed spend spice spoon sport staff stage stair stamp stand start state steam ' +
  'steel stick still stock stone store storm story stove sugar suite sunny super sweet swift swing table taste teach thank theme there thick thing think ' +
  'third those three throw thumb tiger tight title toast today token total touch tower track trade train treat trend trial tribe trick truck truly trust ' +
  'truth twice uncle under union unity until upper urban usual valid value video visit vital voice waste watch water wheel where which white whole width ' +
  'woman world worry worth would wound write wrong young youth zebra'
).split(' ')

interface Game {
  secret: string
  /** The guesses of five letters, with their marks. */
  guesses: { word: string; marks: string }[]
}

export default async function loadEnvironment(args: Record<string, unknown>): Promise<MultiTurnEnv<Game>> {
  const options = parseArgs('wordle', shape, args)
  const order = new Random(options.seed).shuffle([...new Set(words)])
  const toRow = (secret: string) => ({
    prompt:
      `Guess a word of five letters; you have ${options.max_turns} guesses. Write each as <guess>house</guess>. After each you are told, letter by ` +
      `letter: G is the right letter in its place, Y is in the word at another place, X is not in the word.${options.hint ? ` The word begins with ${secret[0]}.` : ''}`,
    answer: secret,
    info: { secret },
  })
  const game = (state: Record<string, unknown>) => state as unknown as Game & { turn: number }
  const solved = ({ secret, guesses }: Game) => guesses.at(-1)?.word === secret
  const letters = (marks: string) =>
    Array.from(marks).reduce((sum, mark) => sum + (mark === 'G' ? 1 : mark === 'Y' ? 0.5 : 0), 0) / 5
  return await MultiTurnEnv.create<Game>({
    id: 'wordle',
    maxTurns: options.max_turns,
    rubric: new Rubric({
      solved: ({ state }) => Number(solved(game(state))),
      speed: { reward: ({ state }) => (solved(game(state)) ? 1 - game(state).turn / options.max_turns : 0), weight: 0.2 },
      letters: { reward: ({ state }) => Math.max(0, ...game(state).guesses.map(({ marks }) => letters(marks))), weight: 0.4 },
      form: { reward: ({ state }) => game(state).guesses.length / game(state).turn, weight: 0.2 },
    }),
    setupState: ({ info }) => ({ secret: String(info.secret), guesses: [] }),
    stop: {
      // This runs after each answer, including the last one, so the guess is read here.
      solved: (state) => {
        const word = guessOf(state.lastText)
        if (word) state.guesses.push({ word, marks: marksOf(word, state.secret) })
        return solved(state)
      },
    },
    envResponse: (_, state) => {
      const left = `${options.max_turns - state.turn} left.`
      const word = guessOf(state.lastText)
      if (!word) return `That is no guess. Write a word of five letters as <guess>house</guess>. ${left}`
      return `${Array.from(word).join(' ').toUpperCase()}\n${Array.from(marksOf(word, state.secret)).join(' ')}\n${left}`
    },
    sftCompletion: (row) => `<guess>${row.answer}</guess>`,
    systemPrompt: options.system_prompt,
    dataset: order.slice(options.eval_size).map(toRow),
    evalDataset: order.slice(0, options.eval_size).map(toRow),
  })
}

/** The last guess of an answer in lower case. Undefined if there is none of five letters. */
function guessOf(text: string): string | undefined {
  return [...text.matchAll(/<guess>\s*([a-z]{5})\s*<\/guess>/giu)].at(-1)?.[1].toLowerCase()
}

/** The marks of a guess: G, Y or X for each letter. A letter gets Y only as often as the word has it besides the Gs. */
function marksOf(guess: string, secret: string): string {
  const marks = Array.from(guess, (letter, i): string => (letter === secret[i] ? 'G' : 'X'))
  const rest = Array.from(secret).filter((_, i) => marks[i] !== 'G')
  for (const [i, letter] of Array.from(guess).entries()) {
    const at = marks[i] === 'G' ? -1 : rest.indexOf(letter)
    if (at < 0) continue
    marks[i] = 'Y'
    rest.splice(at, 1)
  }
  return marks.join('')
}
