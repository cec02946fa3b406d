import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { bindingsOf, expandWgsl, paramsOf } from '../../src/gpu/wgsl.ts'

const folder = mkdtempSync(join(tmpdir(), 'dawn-rl-wgsl-'))
afterAll(() => rmSync(folder, { recursive: true }))
let files = 0

/** Expands a text; sources are cached by path, so each gets a name of its own. */
function expand(text: string, constants: Record<string, number> = {}): string[] {
  const path = join(folder, `${files++}.wgsl`)
  writeFileSync(path, text)
  return expandWgsl(path, constants)
    .split('\n')
    .filter((line) => line !== '')
}

test('constants stand at the head', () => {
  expect(expand('fn f() {}', { A: 3, B: 0 })).toEqual(['const A: u32 = 3u;', 'const B: u32 = 0u;', 'fn f() {}'])
})

test('if, not, else, nested; an unknown name is false', () => {
  const text = '#if A\na\n#if B\nab\n#else\na-\n#endif\n#else\nnone\n#endif\n#if !B\nnot b\n#endif\n#if UNKNOWN\nunknown\n#endif'
  const body = (constants: Record<string, number>): string[] => expand(text, constants).filter((l) => !l.startsWith('const'))
  expect(body({ A: 1, B: 1 })).toEqual(['a', 'ab'])
  expect(body({ A: 1, B: 0 })).toEqual(['a', 'a-', 'not b'])
  expect(body({ A: 0, B: 1 })).toEqual(['none'])
  expect(body({})).toEqual(['none', 'not b'])
})

test('lines may end as on Windows', () => {
  const text = '#if A // of this kind\r\na\r\n#else\r\nb\r\n#endif // A\r\n'
  expect(expand(text, { A: 0 }).slice(1)).toEqual(['b'])
})

test('for repeats, nests, and evaluates integer expressions', () => {
  const text = '#for i in 0..N\nx$(i) = $(2*i+1) / $(i/2);\n#for j in i..2\ny$(i)_$(j)\n#end\n#end'
  expect(expand(text, { N: 2 }).slice(1)).toEqual(['x0 = 1 / 0;', 'y0_0', 'y0_1', 'x1 = 3 / 0;', 'y1_1'])
  expect(expand('#for i in 0..N\nx\n#end', { N: 0 })).toEqual(['const N: u32 = 0u;'])
  expect(expand('#for i in 1..MT/4\nr$((i%4)*2+1)\n#end', { MT: 16 }).slice(1)).toEqual(['r3', 'r5', 'r7'])
})

test('if inside for sees the constants, and substitution only needs its own names', () => {
  expect(expand('#for i in 0..2\n#if A\nv$(i)\n#endif\n#end', { A: 1 }).slice(1)).toEqual(['v0', 'v1'])
})

test('an include is expanded with the same constants, from beside the file or from common', () => {
  writeFileSync(join(folder, 'part.wgsl'), '#if A\npart $(A)\n#endif')
  expect(expand('#include "part.wgsl"\nrest', { A: 5 }).slice(1)).toEqual(['part 5', 'rest'])
  expect(expand('#include "hash.wgsl"').join()).toContain('fn pcg')
  // Inside a loop the loop's variable is known too
  writeFileSync(join(folder, 'looped.wgsl'), 'row $(i)')
  expect(expand('#for i in 0..2\n#include "looped.wgsl"\n#end')).toEqual(['row 0', 'row 1'])
})

test('let gives a name to a value, for the lines behind it in its file and its turn of a loop', () => {
  const text = '#let B = 2*A\n#if B\n$(B+1)\n#endif\n#for i in 0..2\n#let B = B+i\n$(B)\n#end\n$(B)'
  expect(expand(text, { A: 3 }).slice(1)).toEqual(['7', '6', '7', '6'])
  writeFileSync(join(folder, 'named.wgsl'), '$(B)\n#let B = 5')
  expect(expand('#let B = 1\n#include "named.wgsl"\n$(B)')).toEqual(['1', '1'])
  // No constant of the shader, whose text stands before it.
  expect(expand('#let B = 1').join()).not.toContain('const')
  expect(() => expand('a\n#let B 1')).toThrow(/:2: '#let' wants '#let NAME = expression'/)
  expect(() => expand('#let B = C')).toThrow(/:1: 'C' is neither a constant/)
})

test('comments may follow a directive', () => {
  const text = '#if A // one\na\n#else // or the other\nb\n#endif // A\n#for i in 0..A // times\nc\n#end'
  expect(expand(text, { A: 1 }).slice(1)).toEqual(['a', 'c'])
})

test('mistakes name file and line', () => {
  const at = (line: number): RegExp => new RegExp(`\\d+\\.wgsl:${line}: `)
  expect(() => expand('a\n#if A\nb')).toThrow(at(2))
  expect(() => expand('#for i in 0..2\nb')).toThrow("'#for' without '#end'")
  expect(() => expand('#for i of 0..2\n#end')).toThrow(at(1))
  expect(() => expand('a\n#endif')).toThrow("unexpected directive '#endif'")
  // What no variant would hold is a mistake in all of them.
  for (const A of [0, 1]) {
    expect(() => expand('a\n#if A && B\nb\n#endif', { A, B: 1 })).toThrow(
      /:2: '#if' wants '#if NAME' or '#if !NAME', not 'A && B'/,
    )
    expect(() => expand('#if A\n#elif B\nb\n#endif', { A, B: 1 })).toThrow(/:2: unexpected directive '#elif B'/)
    expect(() => expand('#if A\n#else if B\nb\n#endif', { A, B: 1 })).toThrow(/:2: unexpected directive '#else if B'/)
  }
  expect(() => expand('\n\n$(NOBODY)')).toThrow(at(3))
  expect(() => expand('$(A; 1)', { A: 1 })).toThrow('cannot evaluate')
  expect(() => expand('#include "nowhere.wgsl"')).toThrow(/:1: there is no 'nowhere\.wgsl'/)
})

test('bindings and parameters are read from the source', () => {
  const source = `
    struct Params { rows: u32, scale: f32, // how much
      shift: i32, }
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @group(0) @binding(0) var<storage, read> x: array<vec4f>;
    @group(0) @binding(3) var w: texture_storage_2d<rgba32uint, read>;
    @group(0) @binding(2) var v: texture_storage_2d<rgba32float, write>;`
  expect(bindingsOf(source)).toEqual([
    { binding: 0, name: 'x', kind: 'read' },
    { binding: 1, name: 'y', kind: 'read_write' },
    { binding: 2, name: 'v', kind: 'texture', access: 'write-only', format: 'rgba32float' },
    { binding: 3, name: 'w', kind: 'texture', access: 'read-only', format: 'rgba32uint' },
  ])
  expect(paramsOf(source, 'k')).toEqual([
    { name: 'rows', type: 'u32' },
    { name: 'scale', type: 'f32' },
    { name: 'shift', type: 'i32' },
  ])
  expect(paramsOf('fn main() {}', 'k')).toEqual([])
  expect(paramsOf('struct Params{ rows: u32 }', 'k')).toEqual([{ name: 'rows', type: 'u32' }])
})

test('parameters that would not be carried are mistakes', () => {
  const message = "k: struct Params has 'shift: vec2f'; fields are u32, i32 or f32"
  expect(() => paramsOf('struct Params { rows: u32, shift: vec2f, scale: f32 }', 'k')).toThrow(message)
  const fields = (count: number) => Array.from({ length: count }, (_, i) => `a${i}: u32`).join(', ')
  expect(paramsOf(`struct Params { ${fields(16)} }`, 'k')).toHaveLength(16)
  expect(() => paramsOf(`struct Params { ${fields(17)} }`, 'k')).toThrow(
    'k: struct Params has 17 fields; at most 16 are supported',
  )
})
