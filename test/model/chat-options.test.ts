/** What a prompt can be asked to be: with tools, gone on with, by another template; and what tokens are in bytes. */
import { describe, expect, test } from 'vitest'
import type { Message, ToolDefinition } from '../../src/common/types.ts'
import { compileTemplate } from '../../src/model/chat/jinja.ts'
import { strftime } from '../../src/model/chat/python-text.ts'
import { openGgufTokenizer, openTiny } from '../inference/tokenizers.ts'
import { smollm2, userErrorOf, withoutSmollm2 } from './helpers.ts'

const tiny = await openTiny()
const add: ToolDefinition = { type: 'function', function: { name: 'add', parameters: { type: 'object', properties: {} } } }
const messages: Message[] = [
  { role: 'user', content: 'Count.' },
  { role: 'assistant', content: 'One, two,' },
]

describe('the prompt', () => {
  test('goes on with the last message where that is asked for', async () => {
    expect(tiny.renderChat(messages, { continueFinalMessage: true })).toBe('<|user|>Count.<|end|><|assistant|>One, two,')
    expect(tiny.renderChat(messages)).toBe('<|user|>Count.<|end|><|assistant|>One, two,<|end|><|assistant|>')
    expect(
      tiny.renderChat(messages, {
        continueFinalMessage: true,
        chatTemplate: "{% for m in messages %}[{{ m['content'] | trim }}]{% endfor %}",
      }),
    ).toBe('[Count.][One, two,')
    // As transformers has it: spaces at the end stay, unless the template takes them away.
    const spaced: Message[] = [messages[0], { role: 'assistant', content: 'One, ' }]
    expect(tiny.renderChat(spaced, { continueFinalMessage: true })).toMatch(/<\|assistant\|>One, $/)
    const chatTemplate = "{% for m in messages %}[{{ m['content'] | trim }}]{% endfor %}"
    expect(tiny.renderChat(spaced, { continueFinalMessage: true, chatTemplate })).toBe('[Count.][One,')
    const odd: Message[] = [{ role: 'assistant', content: 'One\ufeff\u0085 ' }]
    expect(tiny.renderChat(odd, { continueFinalMessage: true, chatTemplate })).toBe('[One\ufeff')
    expect(
      await userErrorOf(() => tiny.renderChat(messages, { continueFinalMessage: true, addGenerationPrompt: true })),
    ).toContain('continue_final_message and add_generation_prompt are both set')
    expect(await userErrorOf(() => tiny.renderChat([], { continueFinalMessage: true }))).toContain('needs a last message')
    expect(
      await userErrorOf(() =>
        tiny.renderChat(messages, { continueFinalMessage: true, chatTemplate: '{{ messages[0].content }}' }),
      ),
    ).toContain('does not write the last message')
  })

  test('has tools, variables, and the arguments of calls as objects', async () => {
    const chatTemplate = '{% if tools is not none %}{{ tools | tojson }}{% endif %}{{ enable_thinking }}|{{ bos_token }}'
    expect(tiny.renderChat(messages, { chatTemplate, tools: [add], variables: { enable_thinking: 'no' } })).toBe(
      '[{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]no|',
    )
    expect(tiny.renderChat(messages, { chatTemplate, tools: [] })).toBe('|')
    const call = (text: string): Message => ({
      role: 'assistant',
      content: '',
      tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'add', arguments: text } }],
    })
    const calls = '{{ messages[0].tool_calls[0].function.arguments | tojson }}'
    expect(tiny.renderChat([call('{"a":1}')], { chatTemplate: calls })).toBe('{"a": 1}')
    expect(tiny.renderChat([call('')], { chatTemplate: calls })).toBe('{}')
    expect(tiny.renderChat([call('{"a":')], { chatTemplate: calls })).toBe(String.raw`"{\"a\":"`)
    // As Python reads and writes numbers: a float stays one, and an id keeps its digits.
    const numbers = '{"a": 5.0, "id": 1234567890123456789, "b": [1e-7, 2, -0.0, 1E3]}'
    const asPython = '{"a": 5.0, "id": 1234567890123456789, "b": [1e-07, 2, -0.0, 1000.0]}'
    expect(tiny.renderChat([call(numbers)], { chatTemplate: calls })).toBe(asPython)
    expect(tiny.renderChat([call(numbers)], { chatTemplate: calls.replace('arguments | tojson', 'arguments') })).toBe(
      asPython.replaceAll('"', "'"),
    )
    const items = '{% for name, value in messages[0].tool_calls[0].function.arguments.items() %}{{ value }},{% endfor %}'
    expect(tiny.renderChat([call('{"a": 1.0, "b": 0.0}')], { chatTemplate: items })).toBe('1.0,0.0,')
    // DeepSeek-R1's template joins them to text.
    const joined = "{{ '```json\\n' + messages[0].tool_calls[0].function.arguments }}"
    expect(tiny.renderChat([call('{"a":1}')], { chatTemplate: joined })).toBe('```json\n{"a":1}')
    expect(tiny.renderChat([call('')], { chatTemplate: joined })).toBe('```json\n')
    const refuses = '{{ raise_exception(messages[0].tool_calls[0].function.arguments | tojson) }}'
    expect(await userErrorOf(() => tiny.renderChat([call('{"a":1}')], { chatTemplate: refuses }))).toContain(
      'messages: {"a": 1}.',
    )
    expect(await userErrorOf(() => tiny.renderChat(messages, { chatTemplate: '{% for %}' }))).toContain(
      'The chat_template of the request',
    )
  })
})

test.each([
  ['a long range', '{% for i in range(1000000000) %}{% endfor %}', 'a range must have 100000 numbers at most'],
  [
    'loops in loops',
    '{% set r = range(90000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}',
    'may have a loop that never ends',
  ],
  [
    'lists that double',
    '{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}',
    'too much',
  ],
  [
    'macros that call themselves twice',
    '{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}',
    'does not take these messages',
  ],
])('a template that never ends or fills the memory is refused: %s', async (_, chatTemplate, words) => {
  expect(await userErrorOf(() => tiny.renderChat([{ role: 'user', content: 'a' }], { chatTemplate }))).toContain(words)
})

test("a template's strip, lstrip and rstrip take off the letters that they are given, as Python's", () => {
  // Qwen3's template has all three: an answer's indentation stays.
  const indented: Message[] = [{ role: 'user', content: '\n\n  def f():\n    pass\n\n' }]
  const render = (chatTemplate: string) => tiny.renderChat(indented, { chatTemplate })
  expect(render(String.raw`{{ messages[0].content.lstrip('\n') }}|`)).toBe('  def f():\n    pass\n\n|')
  expect(render(String.raw`{{ messages[0].content.rstrip('\n') }}|`)).toBe('\n\n  def f():\n    pass|')
  expect(render(String.raw`{% set c = {'a': messages[0]['content'].strip('\n')} %}{{ c.a }}|`)).toBe('  def f():\n    pass|')
  expect(render(String.raw`{{ messages[0].content.split('def')[-1].strip('\n spa') }}|`)).toBe('f():|')
  expect(render('{{ messages[0].content.strip() }}|')).toBe('def f():\n    pass|')
  expect(render("{{ '\u{1f389}a\u{1f388}\x1c'.strip().strip('\u{1f389}') }}|")).toBe('a\u{1f388}|')
  expect(() => render('{{ messages[0].nothing.strip() }}')).toThrow('work on text only')
})

describe('tokens as bytes', () => {
  test('are, joined, the bytes of the text', () => {
    const text = 'naïve 😀 \n\t{"a": 1}<|end|>'
    const joined = tiny.encode(text).map((id) => tiny.tokenBytes(id)!)
    expect(Buffer.concat(joined).toString()).toBe(text)
    expect(tiny.tokenBytes(5000)).toBeNull()
  })
  test.skipIf(withoutSmollm2)("are so for a real model's tokenizer", async () => {
    const tokenizer = await openGgufTokenizer(smollm2)
    const text = '<|im_start|>Ünïcode — 日本語 😀\r\n  code();'
    expect(Buffer.concat(tokenizer.encode(text).map((id) => tokenizer.tokenBytes(id)!)).toString()).toBe(text)
  })
})

test('the filter string writes lists and objects as Python does, as jinja2 was seen to', () => {
  const value = {
    type: 'function', plain: 'text', one: "it's", two: 'say "x"', both: 'it\'s "x"', lines: 'a\nb\tc\\d\r',
    signs: '\u00e9\u00a0\u200b\u{1f600}\u0007', numbers: [1, -2, 1.5, 1e-7, 123456789], flags: [true, false, null],
    nested: { a: [], b: {}, "c's": [{ d: 'e' }] },
  } // prettier-ignore
  const nested = String.raw`{'a': [], 'b': {}, "c's": [{'d': 'e'}]}`
  const numbers = '[1, -2, 1.5, 1e-07, 123456789]'
  const whole =
    String.raw`{'type': 'function', 'plain': 'text', 'one': "it's", 'two': 'say "x"', 'both': 'it\'s "x"', 'lines': 'a\nb\tc\\d\r', ` +
    String.raw`'signs': '` +
    '\u00e9' +
    String.raw`\xa0\u200b` +
    '\u{1f600}' +
    String.raw`\x07', 'numbers': ${numbers}, 'flags': [True, False, None], 'nested': ${nested}}`
  const render = compileTemplate(
    '{{ v | string }}|{{ v.numbers | string }}|{{ v.one | string }}|{{ 3 | string }}|{{ true | string }}|{{ w | string }}|{{ (v.nested | string) + "!" }}',
  )
  expect(render({ v: value })).toBe([whole, numbers, "it's", '3', 'True', '', `${nested}!`].join('|'))
})

test.each([
  ['{{ none }} {{ true }} {{ false }} {{ missing }}|', 'None True False |'],
  [
    "{{ v }} {{ v.list }} {{ ['a', none, 1.0] }} {{ 1 if false }}",
    "{'list': [1, True, None], 'text': 'it'} [1, True, None] ['a', None, 1.0] ",
  ],
  ["{{ 'a' ~ none ~ true ~ 1.0 ~ v.list ~ missing ~ {'b': 1} }}", "aNoneTrue1.0[1, True, None]{'b': 1}"],
  ["{{ [true, none, 'a'] | join(',') }} {{ ', '.join(['a', 'b']) }} {{ missing | join }}|", 'True,None,a a, b |'],
  ['{% for m in missing %}x{% else %}nothing{% endfor %} {{ missing | length }}', 'nothing 0'],
  ['{% for m in v.none_such if m %}x{% endfor %}|', '|'],
  [
    "{{ [1] == [1] }} {{ {'a': [1]} == {'a': [1]} }} {{ [] == '' }} {{ '1' == 1 }} {{ none == missing }}",
    'True True False False False',
  ],
  [
    "{{ 1 == 1.0 }} {{ [1] != [2] }} {{ {'a': 1} in [{'a': 1}] }} {{ none in [none] }} {{ 2 not in [1] }}",
    'True True True True True',
  ],
  ["{{ v is iterable }} {{ v.list is iterable }} {{ 'a' is iterable }} {{ 1 is not iterable }}", 'True True True True'],
  [
    "{{ '\ufeffa\u0085 ' | trim }}|{{ 'xax' | trim('x') }}|{{ missing | trim }}|{{ ['a', none] | upper }}|{{ '\u{1f600}' | length }}",
    "\ufeffa|a||['A', NONE]|1",
  ],
  ["{{ messages | selectattr('role', 'in', ['user', 'tool']) | list | length }}", '1'],
  ["{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | map('upper') | join }}", 'B'],
  ["{{ 'ab' * 2 }} {{ 2 * 3 }} {{ [1] + [2] }} {{ [3, 1] | first }} {{ [] | first is defined }}", 'abab 6 [1, 2] 3 False'],
  [
    '{% macro m(x) %}{{ x }}{% endmacro %}{% set y = none %}{{ m(none) }}{# a remark #}{{ range(1, 6, 2) | list }}',
    'None[1, 3, 5]',
  ],
])('a template writes, joins and compares values as jinja2 was seen to: %s', (chatTemplate, text) => {
  const v = { list: [1, true, null], text: 'it' }
  const roles = [{ role: 'user', content: 'a' }, { role: 'assistant', content: 'b' }] // prettier-ignore
  expect(compileTemplate(chatTemplate)({ v, messages: roles })).toBe(text)
})

test("a template's + joins text with text only, its strftime_now knows Python's letters, and its line ends are read as one kind", () => {
  for (const other of ['v', '[1]', '1', 'true']) {
    expect(() => compileTemplate(`{{ 'a' + ${other} }}`)({ v: {} })).toThrow('+ joins text with text only, not string with')
  }
  const date = new Date(2024, 0, 9, 15, 4, 5)
  expect(strftime('%A %a %B %b %d %-d %e %H:%M:%S %I %p %j %y %Y %F %% %Q', date)).toBe(
    'Tuesday Tue January Jan 09 9  9 15:04:05 03 PM 009 24 2024 2024-01-09 % %Q',
  )
  expect(compileTemplate("{{ strftime_now('%Y') }}")({})).toBe(String(new Date().getFullYear()))
  expect(compileTemplate("{% if true %}\r\na\r\n{% endif %}\r\n{{ 'b\r\nc' }}\r\n")({})).toBe('a\nb\nc')
})
