/** The metadata of a GGUF file, read with errors that name the file and the key. */
import { UserError } from '../../common/errors.ts'
import type { GgufFile, GgufValue } from './gguf.ts'

const isNumber = (value: GgufValue): value is number => typeof value === 'number'
const isString = (value: GgufValue): value is string => typeof value === 'string'
const isFlag = (value: GgufValue): value is boolean => typeof value === 'boolean'
const isStrings = (value: GgufValue): value is string[] => Array.isArray(value) && value.every(isString)
const isNumbers = (value: GgufValue): value is number[] => Array.isArray(value) && value.every(isNumber)
const isNumberOrFlags = (value: GgufValue): value is number | boolean[] =>
  isNumber(value) || (Array.isArray(value) && value.every(isFlag))
const isNumberOrNumbers = (value: GgufValue): value is number | number[] =>
  isNumber(value) || (isNumbers(value) && value.length > 0)

/** Reads metadata keys with errors that name the file and the key. */
export function metadataReader(file: GgufFile) {
  const get = <T>(key: string, is: (value: GgufValue) => value is T & GgufValue, what: string): T | undefined => {
    const value = file.metadata.get(key)
    if (value === undefined) return undefined
    if (!is(value)) throw new UserError(`${file.path}: ${key} must be ${what}.`)
    return value
  }
  const above0 = (key: string, otherwise?: number): number => {
    const value = get<number>(key, isNumber, 'a number') ?? otherwise
    if (value === undefined) throw new UserError(`${file.path}: the metadata has no ${key}. Is the file a complete model?`)
    if (!(value > 0 && value < Infinity)) throw new UserError(`${file.path}: ${key} is ${value}; it must be a number above 0.`)
    return value
  }
  return {
    number: (key: string) => get<number>(key, isNumber, 'a number'),
    string: (key: string) => get<string>(key, isString, 'a string'),
    /** The id of a special token. One that the vocabulary does not reach stands for none, as 4294967295 does in some files. */
    tokenId: (name: string): number | undefined => {
      const id = get<number>(`tokenizer.ggml.${name}`, isNumber, 'a number')
      const tokens = file.metadata.get('tokenizer.ggml.tokens')
      const count = Array.isArray(tokens) ? tokens.length : Infinity
      return id !== undefined && Number.isInteger(id) && id >= 0 && id < count ? id : undefined
    },
    flag: (key: string) => get<boolean>(key, isFlag, 'true or false'),
    strings: (key: string) => get<string[]>(key, isStrings, 'a list of strings'),
    numbers: (key: string) => get<number[]>(key, isNumbers, 'a list of numbers'),
    numberOrFlags: (key: string) => get<number | boolean[]>(key, isNumberOrFlags, 'a number, or a list of true and false'),
    above0,
    /** A number that some files give for each layer. */
    sameInAll: (key: string): number | undefined => {
      const value = get<number | number[]>(key, isNumberOrNumbers, 'a number, or a list of them')
      if (!Array.isArray(value)) return value
      if (value.every((one) => one === value[0])) return value[0]
      throw new UserError(`${file.path}: ${key} is not the same in all layers, which is not supported.`)
    },
    count: (key: string, most = Infinity): number => {
      const value = above0(key)
      if (Number.isInteger(value) && value <= most) return value
      const bounds = most === Infinity ? 'a whole number above 0' : `a whole number from 1 to ${most}`
      throw new UserError(`${file.path}: ${key} is ${value}; it must be ${bounds}.`)
    },
  }
}

/** The decimal that was meant by a float32 (9.99999974e-06 is 1e-5): the shortest that rounds to it. */
export function exactDecimal(value: number): number {
  for (let digits = 1; digits < 10; digits++) {
    const short = Number(value.toPrecision(digits))
    if (Math.fround(short) === value) return short
  }
  return value
}
