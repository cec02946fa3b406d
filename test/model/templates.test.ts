/** Chat templates give what jinja2 3.1.6 gave with transformers' settings (`render_jinja_template`), from which every text here was copied. */
import { describe, expect, test } from 'vitest'
import { compileTemplate } from '../../src/model/chat/jinja.ts'

const variables = { xs: [3, 1, 2], pairs: { b: 1, a: 2 } }
const written = (template: string) => compileTemplate(template)(variables)

describe('in loops', () => {
  test.each([
    ["{% for i in xs %}{% if i == 3 %}{% set x = 'a' %}{% endif %}[{{ x }}]{% endfor %}", '[a][][]'],
    ["{% set x = 'o' %}{% for i in xs %}{% if i == 3 %}{% set x = 'a' %}{% endif %}[{{ x }}]{% endfor %}{{ x }}", '[a][o][o]o'],
    ['{% for i in xs %}{% set ns = namespace(n=i) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}', '423'],
  ])('a round knows nothing of what the one before it set: %s', (template, text) => expect(written(template)).toBe(text))

  test.each([
    ['{% for i in xs %}a{{ i }}{% if i == 1 %}b{% break %}{% endif %}c{% endfor %}', 'a3ca1b'],
    ['{% for i in xs %}a{{ i }}{% if i == 1 %}b{% continue %}{% endif %}c{% endfor %}', 'a3ca1ba2c'],
    ['{% for i in xs %}a{% continue %}{% else %}E{% endfor %}', 'aaaE'],
    ['{% for i in xs %}{% for j in xs %}{{ j }}{% if j == 1 %}{% break %}{% endif %}{% endfor %}|{% endfor %}', '31|31|31|'],
  ])('what was written before break or continue stays: %s', (template, text) => expect(written(template)).toBe(text))

  test.each([
    ['{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}', '1234'],
    ['{% for key, value in pairs.items() if value > 1 %}{{ key }}{{ loop.index }}{{ loop.last }}{% endfor %}', 'a1True'],
    [
      '{% for i in xs %}{{ loop.previtem }}<{{ loop.nextitem }}{{ loop.depth }}{{ loop.revindex0 }} {% endfor %}',
      '<112 3<211 1<10 ',
    ],
    ['{% for key in pairs %}{{ key }}{% endfor %}{{ loop is defined }}', 'baFalse'],
  ])('loop and the variables: %s', (template, text) => expect(written(template)).toBe(text))

  test('what cannot be gone over is refused', () => {
    expect(() => written("{% for c in 'abc' %}{{ c }}{% endfor %}")).toThrow('lists and objects only, not over string')
    expect(() => written('{% for a, b in xs %}{% endfor %}')).toThrow('a loop with 2 variables needs lists of as many values')
    expect(() => written('{% break %}')).toThrow('break stands outside of a loop')
  })
})

test.each([
  ['{% macro m() %}[{{ i }}]{% endmacro %}{% for i in xs %}{{ m() }}{% endfor %}', '[][][]'],
  ["{% macro m() %}[{{ i }}]{% endmacro %}{% set i = 'o' %}{% for i in xs %}{{ m() }}{% endfor %}", '[o][o][o]'],
  ['{% macro m() %}[{{ caller() }}]{% endmacro %}{% for i in xs %}{% call m() %}{{ i }}{% endcall %}{% endfor %}', '[3][1][2]'],
  [
    '{% macro a() %}<{{ caller is defined }}>{% endmacro %}{% macro m() %}[{{ a() }}{{ caller() }}]{% endmacro %}{% call m() %}x{% endcall %}',
    '[<False>x]',
  ],
  ['{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}', '3210'],
])('a macro sees the variables of where it stands: %s', (template, text) => expect(written(template)).toBe(text))
