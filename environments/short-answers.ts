/**
 * Short questions with short answers: capitals, opposites, plurals and so on. A small chat model knows most of them but rambles. It learns to give
 * the answer and stop.
 * Reward: 0.2 for ending by itself + 0.8 x (the answer's words are in the text) x clamp((18 - words) / 12, 0, 1). Up to six words ("The capital of
 * France is Paris.") get the full reward. The gentle slope above six keeps the rewards within a group different while the answers get shorter.
 *
 * The tables contain what SmolLM2-135M-Instruct is likely to know, as a question whose answer the model cannot find teaches nothing: given the start
 * of the sentence ("The capital of Norway is"), it continues with the correct answer with probability 0.6 or more at temperature 0.8 (less for
 * languages and a few others). Before training, at that temperature and with 24 tokens, the answer is in 0.7 (train) and 0.8 (held-out) of its
 * completions, and the mean reward is 0.3. Both directions of a pair of opposites are on the same side of the split.
 *
 * To start from a copy in another folder, replace the path in the import by 'dawn-rl/environments'.
 */
import { containsWords, parseArgs, Random, type RewardArgs, Rubric, SingleTurnEnv, words, z } from '../src/environments/index.ts'

/** Things to ask about with their answers: all that are accepted, the best one first. */
type Table = Record<string, string | string[]>

// prettier-ignore
const tables: Record<string, { ask: string; train: Table; held: Table }> = {
  capital: {
    ask: 'What is the capital of {}?',
    train: {
      France: 'Paris', Germany: 'Berlin', Italy: 'Rome', Spain: 'Madrid', Japan: 'Tokyo', China: 'Beijing', Russia: 'Moscow', Egypt: 'Cairo',
      Portugal: 'Lisbon', Canada: 'Ottawa', Australia: 'Canberra', Austria: 'Vienna', Sweden: 'Stockholm', Denmark: 'Copenhagen', Ireland: 'Dublin',
      Greece: 'Athens', Tennessee: 'Nashville', Indonesia: 'Jakarta', Kenya: 'Nairobi', Argentina: 'Buenos Aires', Chile: 'Santiago', England: 'London',
      Bulgaria: 'Sofia', Czechia: 'Prague', 'the Netherlands': 'Amsterdam', Syria: 'Damascus', Pakistan: 'Islamabad', Bangladesh: 'Dhaka',
      Ethiopia: 'Addis Ababa', Estonia: 'Tallinn', Latvia: 'Riga', Azerbaijan: 'Baku', Somalia: 'Mogadishu', Rwanda: 'Kigali', Senegal: 'Dakar',
      Tunisia: 'Tunis', 'North Korea': 'Pyongyang', 'New Zealand': 'Wellington', 'Northern Ireland': 'Belfast', Texas: 'Austin', Hawaii: 'Honolulu',
      Massachusetts: 'Boston', Utah: 'Salt Lake City', Louisiana: 'Baton Rouge', Ontario: 'Toronto',
    },
    held: {
      Norway: 'Oslo', Hungary: 'Budapest', Cuba: 'Havana', 'South Korea': 'Seoul', Scotland: 'Edinburgh', Uganda: 'Kampala', Romania: 'Bucharest',
      Thailand: 'Bangkok',
    },
  },
  opposite: {
    ask: 'What is the opposite of {}?',
    train: {
      hot: 'cold', up: 'down', left: 'right', day: 'night', night: 'day', black: 'white', happy: 'sad', tall: 'short',
      wet: 'dry', strong: 'weak', weak: 'strong', heavy: 'light', long: 'short', high: 'low', low: 'high', inside: 'outside', outside: 'inside',
      push: 'pull', top: 'bottom', wide: 'narrow', near: 'far', yes: 'no', war: 'peace', peace: 'war', success: 'failure', positive: 'negative',
      more: ['less', 'fewer'], public: 'private', private: 'public', ancient: 'modern', small: ['big', 'large'], large: 'small', big: ['small', 'little'],
      dark: 'light', good: ['bad', 'evil'], bad: 'good', heaven: 'hell', victory: 'defeat', multiply: ['divide', 'division'], internal: 'external',
      horizontal: 'vertical', import: 'export', hero: 'villain', visible: 'invisible', young: 'old', old: ['new', 'young'], rural: 'urban',
      superior: 'inferior', entrance: 'exit', active: 'passive', even: 'odd', rough: 'smooth', cause: 'effect', input: 'output', analog: 'digital',
      start: ['end', 'stop', 'finish'], loud: ['quiet', 'soft'], forward: ['backward', 'backwards'],
    },
    held: {
      fast: 'slow', slow: 'fast', north: 'south', south: 'north', thick: 'thin', male: 'female', female: 'male', increase: 'decrease',
      maximum: 'minimum', shallow: 'deep', hard: 'soft', soft: 'hard', profit: 'loss', attack: ['defend', 'defense', 'defence'],
    },
  },
  plural: {
    ask: 'What is the plural of {}?',
    train: {
      child: 'children', tooth: 'teeth', woman: 'women', person: 'people', cat: 'cats', book: 'books', box: 'boxes', leaf: 'leaves', baby: 'babies',
    },
    held: { foot: 'feet', city: 'cities' },
  },
  symbol: {
    ask: 'What is the chemical symbol for {}?',
    train: { silver: 'Ag', potassium: 'K', oxygen: 'O', sodium: 'Na', copper: 'Cu', nitrogen: 'N', zinc: 'Zn', tin: 'Sn' },
    held: { gold: 'Au', iron: 'Fe' },
  },
  language: {
    ask: 'What language is spoken in {}?',
    train: { France: 'French', Spain: 'Spanish', Estonia: 'Estonian', Hungary: 'Hungarian', Turkey: 'Turkish', Argentina: 'Spanish' },
    held: { Russia: 'Russian' },
  },
  who: {
    ask: 'Who {}?',
    train: {
      'wrote Romeo and Juliet': 'Shakespeare', 'wrote Macbeth': 'Shakespeare', 'wrote Pride and Prejudice': 'Austen',
      'wrote The Great Gatsby': 'Fitzgerald', 'wrote Dracula': 'Stoker', 'discovered gravity': 'Newton',
      'invented the light bulb': 'Edison', 'invented the telephone': 'Bell',
    },
    held: { 'wrote Hamlet': 'Shakespeare', 'developed the theory of relativity': 'Einstein' },
  },
  where: {
    ask: '{}?',
    train: {
      'In which city is the Eiffel Tower': 'Paris', 'In which city is the Colosseum': 'Rome', 'In which city is the Kremlin': 'Moscow',
      'In which city is the Empire State Building': 'New York', 'In which city is the Golden Gate Bridge': 'San Francisco',
      'In which country is the Great Wall': 'China', 'In which country is Mount Fuji': 'Japan', 'In which country is Milan': 'Italy',
      'In which country is Amsterdam': 'Netherlands', 'On which continent is Argentina': 'South America', 'On which continent is Canada': 'North America',
      'On which continent is Germany': 'Europe',
    },
    held: { 'In which city is the Acropolis': 'Athens', 'In which country is Kyoto': 'Japan', 'On which continent is Chile': 'South America' },
  },
  number: {
    ask: 'How many {}?',
    train: {
      'days are in a week': ['seven', '7'], 'months are in a year': ['twelve', '12'], 'hours are in a day': ['twenty-four', '24'],
      'legs does a spider have': ['eight', '8'], 'sides does a triangle have': ['three', '3'],
    },
    held: { 'seconds are in a minute': ['sixty', '60'] },
  },
}

const kinds = Object.keys(tables)

const shape = {
  kinds: z
    .array(z.enum(kinds as [string, ...string[]]))
    .min(1)
    .default(kinds)
    .describe('Kinds of questions to ask.'),
  system_prompt: z.string().optional().describe("System message. By default the chat template's own."),
  seed: z.int().default(0).describe('Decides the order of the questions.'),
}

export default async function loadEnvironment(args: Record<string, unknown>): Promise<SingleTurnEnv> {
  const options = parseArgs('short-answers', shape, args)
  const rows = (part: 'train' | 'held') => {
    const questions = options.kinds.flatMap((kind) =>
      Object.entries(tables[kind][part]).map(([thing, answer]) => {
        const accept = [answer].flat()
        return { prompt: tables[kind].ask.replace('{}', thing), answer: accept[0], info: { kind, accept } }
      }),
    )
    return new Random(options.seed).shuffle(questions).map((row, i) => Object.assign(row, { example_id: i }))
  }
  return await SingleTurnEnv.create({
    id: 'short-answers',
    rubric: new Rubric({
      ended: { reward: ended, weight: 0.2 },
      answer: { reward: (rollout) => correct(rollout) * brevity(rollout), weight: 0.8 },
      correct: { reward: correct, weight: 0 },
      words: { reward: ({ text }) => words(text).length, weight: 0 },
    }),
    systemPrompt: options.system_prompt,
    dataset: rows('train'),
    evalDataset: rows('held'),
  })
}

const ended = ({ finishReason }: RewardArgs): number => (finishReason === 'stop' ? 1 : 0)

const correct = ({ text, info }: RewardArgs): number =>
  (info.accept as string[]).some((answer) => containsWords(text, answer)) ? 1 : 0

const brevity = ({ text }: RewardArgs): number => Math.min(1, Math.max(0, (18 - words(text).length) / 12))
