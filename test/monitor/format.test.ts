import { expect, test } from 'vitest'
import { AT } from '../../src/common/commands.ts'
import {
  formatBytes,
  formatCount,
  formatDuration,
  formatNumber,
  formatPercent,
  oneLine,
  printable,
  shellWord,
  sparkline,
  wrap,
} from '../../src/monitor/format.ts'
import fc from '../fast-check.ts'

test('durations carry over at the edges of their units', () => {
  const shown = [0, 0.04, 12.34, 59.94, 59.96, 110, 3599.4, 3599.6, 7500, 86_399, 273_600, -3].map(formatDuration)
  expect(shown).toEqual([
    '0.0s', '0.0s', '12.3s', '59.9s', '1m00s', '1m50s', '59m59s', '1h00m', '2h05m', '1d00h', '3d04h', '-3.0s',
  ]) // prettier-ignore
  expect([null, undefined, NaN, Infinity].map(formatDuration)).toEqual(['n/a', 'n/a', 'n/a', 'n/a'])
})

test('bytes, counts, numbers, percentages', () => {
  expect([0, 512, 1536, 1048575, 102_550_000, 12 * 2 ** 30, -2048].map(formatBytes)).toEqual([
    '0 B', '512 B', '1.50 KiB', '1.00 MiB', '97.8 MiB', '12.0 GiB', '-2.00 KiB',
  ]) // prettier-ignore
  expect([7, 999.4, 999.6, 45_300, 999_600, 1_350_000].map(formatCount)).toEqual(['7', '999', '1.00k', '45.3k', '1.00M', '1.35M'])
  expect([0, 0.01234, 4.567, 123.4, 12345.6, 1.23e-7, -0.5, NaN].map(formatNumber)).toEqual([
    '0', '0.0123', '4.57', '123', '12346', '1.2e-7', '-0.5', 'n/a',
  ]) // prettier-ignore
  // 0 % and 100 % are claims: only exactly none and exactly all may be shown so.
  expect([0, 0.001, 0.03, 0.9999, 1].map(formatPercent)).toEqual(['0%', '<1%', '3%', '>99%', '100%'])
})

test('a sparkline spans its own range, shows the newest, and survives gaps and flat series', () => {
  expect(sparkline([0, 0.5, 1])).toBe('▁▅█')
  expect(sparkline([0.3, 0.3])).toBe('▄▄')
  expect(sparkline([0, null, 1, NaN])).toBe('▁ █ ')
  expect(sparkline([9, 9, 0, 1], 2)).toBe('▁█')
  expect(sparkline([])).toBe('')
  fc.assert(
    fc.property(fc.array(fc.option(fc.double())), (values) => {
      expect(Array.from(sparkline(values, 1000))).toHaveLength(values.length)
      expect(sparkline(values, 1000)).toMatch(/^[▁▂▃▄▅▆▇█ ]*$/)
    }),
  )
})

test('a model cannot write escape sequences to the terminal', () => {
  expect(printable('a\x1b[31mb\x07\r\nc\td\x7f\x9b')).toBe('a␛[31mb␇\nc\td␡\ufffd')
  expect(oneLine('  a\n\n b  ', 10)).toBe('a b')
  expect(oneLine('abcdef', 4)).toBe('abc…')
})

test('wrap keeps every word and never exceeds the width', () => {
  expect(wrap('The capital of France is Paris.', 12)).toEqual(['The capital', 'of France is', 'Paris.'])
  expect(wrap('abcdefgh', 3)).toEqual(['abc', 'def', 'gh'])
  // Two columns each.
  expect(wrap('日本の首都は東京です ok', 8)).toEqual(['日本の首', '都は東京', 'です ok'])
  expect(wrap('東京', 1)).toEqual(['東', '京'])
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme-ascii' }), fc.integer({ min: 1, max: 40 }), (text, width) => {
      const lines = wrap(text, width)
      expect(Math.max(...lines.map((l) => l.length))).toBeLessThanOrEqual(width)
      expect(lines.join('').replace(/\s/g, '')).toBe(text.replace(/\s/g, ''))
    }),
  )
})

test('a word of a printed command is quoted as the shell of its system takes it', () => {
  expect(['a/b-1.toml', 'C:/x', 'a b', "it's", 'C:\\runs\\my run'].map((word) => shellWord(word, 'linux'))).toEqual(
    ['a/b-1.toml', 'C:/x', "'a b'", "'it'\\''s'", "'C:\\runs\\my run'"], // prettier-ignore
  )
  expect(
    ['a/b-1.toml', 'a b', "it's", 'C:\\runs\\my run', '{"a":1}', 'a,b', '@'].map((word) => shellWord(word, 'win32')),
  ).toEqual(
    ['a/b-1.toml', '"a b"', '"it\'s"', '"C:\\runs\\my run"', '"{\\"a\\":1}"', '"a,b"', '"@"'], // prettier-ignore
  )
  // Between a program and its config.
  expect(AT).toBe(shellWord('@'))
})
