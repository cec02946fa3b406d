/** Chat templates give what jinja2 3.1.6 gave with transformers' settings (`render_jinja_template`), from which every text here was copied. */
import { describe, expect, test } from 'vitest'
import { compileTemplate } from '../../src/model/chat/jinja.ts'

const variables = {
  xs: [3, 1, 2],
  pairs: { b: 1, a: 2 },
  call: { items: [1], values: 'v', B: 3, _x: 4 },
  messages: [
    { role: 'user', content: { a: 1 } },
    { role: 'tool', content: { a: 2 } },
  ],
  face: '\u{1f600}x',
}
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

test.each([
  ['{% for key, value in call.items() %}{{ key }}={{ value }};{% endfor %}', 'items=[1];values=v;B=3;_x=4;'],
  [
    "{{ call.values() | list | length }} {{ call['items'] }} {{ call.get('values') }} {{ call.keys() | join }}",
    '4 [1] v itemsvaluesB_x',
  ],
  ['{{ face[0] }}|{{ face[-1] }}|{{ face[1] }}|{{ face[2] }}|{{ face[:1] }}', '\u{1f600}|x|x||\u{1f600}'],
])('members of objects and texts: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  [
    '{{ -1 % 2 }} {{ (0 - 1) % 2 == 1 }} {{ 5 % -3 }} {{ 2.5 % -2 }} {{ -0.5 % 1 }} {{ -7 // 2 }} {{ 4 / 2 }}',
    '1 True -1 -1.5 0.5 -4 2.0',
  ],
  [
    "{{ '12abc' | int }} {{ '1.9' | int }} {{ (-1.5) | int }} {{ '1e3' | int }} {{ '1_000' | int }} {{ 'x' | int(7) }}",
    '0 1 -1 1000 1000 7',
  ],
  ["{{ '5%' | float }} {{ ' .5 ' | float }} {{ 'x' | float(1) }} {{ true | int }} {{ none | int }}", '0.0 0.5 1 1 0'],
  ['{{ missing is sequence }} {{ pairs is sequence }} {{ 1 is not sequence }}', 'True True True'],
  [
    "{{ true is number }} {{ 1.5 is number }} {{ '' is lower }} {{ '1' is upper }} {{ 'a' is lower }}",
    'True True False False True',
  ],
])('numbers: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  ['{{ "hello WORLD it\'s" | title }}|{{ "hello WORLD it\'s".title() }}', "Hello World It's|Hello World It'S"],
  [
    "{{ 'hELLO wORLD' | capitalize }}|{{ 'hELLO'.capitalize() }}|{{ 'hELLO-wORLD (foo)' | title }}",
    'Hello world|Hello|Hello-World (Foo)',
  ],
  ["{{ 'a\u2028b\u0085c\r\nd\x0be' | indent }}", 'a\n    b\n    c\n    d\n    e'],
  [
    "{{ '\n\na\n' | indent(2, true) }}|{{ '' | indent(2, true) }}|{{ 'a\n\nb' | indent('\t', blank=true) }}",
    '  \n\n  a\n|  |a\n\t\n\tb',
  ],
  ['{% filter title %}hELLO{% endfilter %}{% set t %}{% set inner = 1 %}b{% endset %}{{ t }}{{ inner }}', 'Hellob'],
])('texts: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  [
    "{{ messages | join(', ', attribute='role') }} {{ messages | join(attribute='role') }} {{ xs | join(d='-') }}",
    'user, tool usertool 3-1-2',
  ],
  ["{{ messages | selectattr('content.a', 'equalto', 2) | map(attribute='role') | list }}", "['tool']"],
  ["{{ ['a', 'A', 'b'] | unique | list }} {{ [1, 1.0, true] | unique | list }}", "['a', 'b'] [1]"],
  ["{% if messages | selectattr('role', 'equalto', 'nobody') %}Y{% endif %}{% if [] | map('string') | list %}N{% endif %}", 'Y'],
])('lists: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  ['{{ call | tojson(sort_keys=true) }}', '{"B": 3, "_x": 4, "items": [1], "values": "v"}'],
  ['{{ pairs | tojson(indent=0) }}{{ pairs | tojson(false, 2) }}', '{\n"b": 1,\n"a": 2\n}{\n  "b": 1,\n  "a": 2\n}'],
  [
    "{{ 'é😀\\x7f' | tojson(true) }} {{ 'é😀/<' | tojson }} {{ [] | tojson(indent=2) }}",
    '"\\u00e9\\ud83d\\ude00\\u007f" "é😀/<" []',
  ],
  ["{{ [1.0, none, {'a': true}] | tojson(separators=(',', ':'), indent='-') }}", '[\n-1.0,\n-null,\n-{\n--"a":true\n-}\n]'],
])('tojson: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  ["{{ xs | select('odd') | list }} {{ xs | reject('odd') | join }} {{ ['', 'a', none] | select | list }}", "[3, 1] 2 ['a']"],
  [
    "{{ xs | select('gt', 1) | list }} {{ xs | select('in', [1, 2]) | sum }} {{ xs | sum }} {{ xs | min }}{{ xs | max }}",
    '[3, 2] 3 6 13',
  ],
  [
    "{{ messages | sum(attribute='content.a') }} {{ ['b', 'A'] | max }} {{ [] | max }}|{{ [[1], [2]] | sum(start=[]) }}",
    '3 b |[1, 2]',
  ],
  [
    "{{ messages | unique(attribute='role') | list | count }} {{ ['a', 'A'] | unique(case_sensitive=true) | list }}",
    "2 ['a', 'A']",
  ],
  [
    "{{ 'ab' | list }} {{ 'ab' | first }}{{ 'ab' | last }} {{ pairs | list }} {{ face | reverse }} {{ 5 | replace('5', '6') }}",
    "['a', 'b'] ab ['b', 'a'] x\u{1f600} 6",
  ],
  [
    "{{ none | d('x') }} {{ none | d('x', true) }} {{ 0 | default(boolean=true, default_value=7) }} {{ missing | d }}|",
    'None x 7 |',
  ],
  ['{{ pairs | dictsort }} {{ pairs | items | list }}', "[('a', 2), ('b', 1)] [('b', 1), ('a', 2)]"],
])('filters: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  [
    "{{ 4 is divisibleby 2 }} {{ 4 is not divisibleby(3) }} {{ 2 is in xs }} {{ 2 is in [1, 3] and true }} {{ 'a' is eq 'a' }}",
    'True True True False True',
  ],
  [
    "{{ 1.5 is float }} {{ 1 is lt xs[0] }} {{ 'yes' if xs | length is ge 3 else 'no' }} {{ xs is defined and xs is not none }}",
    'True True yes True',
  ],
  [
    "{{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ [1, 2] < [1, 3] }} {{ true > 0.5 }} {{ 1 < true }} {{ '\uff5e' < face }}",
    'True True True True False True',
  ],
  ['{{ true + true }} {{ 3 - true }} {{ true * 2.5 }} {{ (xs | length > 2) + 1 }}', '2 2 2.5 2'],
])('tests and comparisons: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  [
    "{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ face.index('x') }} {{ 'banana'.count('an') }}",
    '2 3 -1 1 2',
  ],
  [
    "{{ xs.index(2) }} {{ xs.count(3) }} {{ 'a\r\nb\n'.splitlines() }} {{ '<think>x'.removeprefix('<think>') }} {{ 'a.py'.removesuffix('.py') }}",
    "2 1 ['a', 'b'] x a",
  ],
  [
    "{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'A1'.isupper() }} {{ ' \t'.isspace() }} {{ 'a1'.isalnum() }}",
    'True False True True True True',
  ],
  [
    "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=')[0] }} {{ 'a'.partition('=')[2] == '' }}",
    "('a', '=', 'b=c') a=b True",
  ],
])('methods: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  ["{% raw %}{{ 'x' }} {% if %}{# no #}é😀{% endraw %}|", "{{ 'x' }} {% if %}{# no #}é😀|"],
  ['a  {%- raw -%}  b  {%- endraw -%}  c', 'abc'],
  ['{% raw %}\n  {{ a }}\n  {% endraw %}\nb', '\n  {{ a }}\nb'],
  ['{% with x = 1, y = xs[0] %}{{ x }}{{ y }}{% endwith %}{{ x }}', '13'],
  ['{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}|', '1|'],
  [
    'a {%- with x = [1, 2] -%} {% for i in x %}{{ i }}{% if i == 1 %}{% continue %}{% endif %}.{% endfor %} {%- endwith %} b',
    'a12. b',
  ],
])('raw and with: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  '{% set r = range(100000) | list %}{% for i in range(99999) %}{{ -1 in r }}{% endfor %}',
  '{% set r = range(100000) | list %}{% set q = range(100000) | list %}{% for i in range(99999) %}{{ r == q }}{% endfor %}',
  "{{ range(99999) | select('in', range(100000)) | list | length }}",
  "{% set t = 'a' * 100000000 %}{% for i in range(99999) %}{{ 'b' in t }}{% endfor %}",
])('going through long values counts as work: %s', (template) =>
  expect(() => written(template)).toThrow('the template does too much'),
)

test.each([
  ['{% if true -%}   {% generation %}   x{% endgeneration %}{% endif %}', '   x'],
  ['a  {% generation %}  x  {% endgeneration %}  {%- if true %}b{% endif %}', 'a    x  b'],
  [
    '{% for i in xs %}{%- generation -%} {{ i }}{{ loop.last }} {%- endgeneration -%} {% set y = 1 %}{% endfor %}',
    '3False1False2True',
  ],
  ['{% generation %}{% set x = 1 %}{% endgeneration %}{{ x }}|', '|'],
])('around what is to be written: %s', (template, text) => expect(written(template)).toBe(text))

test.each([
  ['{{ xs | tojson(width=3) }}', 'the filter tojson takes only ensure_ascii, indent, separators, sort_keys'],
  ["{{ 'abc'.startswith('b', 1) }}", 'startswith takes only one argument'],
  ["{{ messages | sort(attribute='role,content') }}", 'the filter sort takes only one attribute'],
  ["{{ strftime_now('%c') }}", 'strftime_now does not support %c'],
  ['{{ 1 // 0 }}', '// divides by zero'],
])('what would be written otherwise is refused: %s', (template, message) => expect(() => written(template)).toThrow(message))
