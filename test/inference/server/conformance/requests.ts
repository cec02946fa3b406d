/** What the conformance suite asks, of our server and of vLLM, in this order. All answers are greedy: two servers draw other random numbers. */

/** One request. */
export interface Exchange {
  name: string
  /** Default: POST with a body, else GET. */
  method?: string
  path: string
  /** An object is sent as JSON, a text as it is; {adapters} and {weights} in it are folders of the machine. */
  body?: object | string
  type?: string
  /** It is sent before the next one, and awaited after that. */
  background?: boolean
}

const model = 'tiny'
const hello = [104, 101, 108, 108, 111]
/** Of the window of 512 it leaves 12. */
const long = Array.from({ length: 500 }, () => 97)
const messages = [{ role: 'user', content: 'what is 3 + 4?' }]
const greedy = { model, temperature: 0 }
/** n > 1 needs a temperature, and top_k 1 leaves one token to draw. */
const twice = { model, temperature: 1, top_k: 1, n: 2 }
const streamed = { stream: true, stream_options: { include_usage: true } }

const call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
const city = { type: 'object', properties: { city: { enum: ['Rome'] } }, required: ['city'], additionalProperties: false }
/** The format makes the model say a call. */
const calling = {
  tools: [{ type: 'function', function: { name: 'weather', parameters: city } }],
  tool_choice: 'auto',
  structured_outputs: { choice: [call] },
  max_tokens: 200,
}

const completion = (name: string, body: object): Exchange => ({
  name: `completion: ${name}`, path: '/v1/completions', body: { ...greedy, prompt: 'hello', max_tokens: 8, ...body },
}) // prettier-ignore
const chat = (name: string, body: object): Exchange => ({
  name: `chat: ${name}`, path: '/v1/chat/completions', body: { ...greedy, messages, max_tokens: 8, ...body },
}) // prettier-ignore
const generate = (name: string, params: object, body: object = {}): Exchange => ({
  name: `generate: ${name}`,
  path: '/inference/v1/generate',
  body: { model, token_ids: hello, sampling_params: { temperature: 0, max_tokens: 8, ...params }, ...body },
})
const post = (name: string, path: string, body: object | string = {}): Exchange => ({ name, path, body })
const get = (name: string, path: string): Exchange => ({ name, path })

const status = [get('models', '/v1/models'), get('health', '/health'), get('ping', '/ping'), get('version', '/version')]

const completions = [
  completion('text', {}),
  completion('16 tokens where none are asked for', { max_tokens: null, ignore_eos: true }),
  completion('ids', { prompt: hello, return_token_ids: true }),
  completion('texts', { prompt: ['hello', 'abc'], return_token_ids: true }),
  completion('lists of ids', { prompt: [hello, [97, 98, 99]] }),
  completion('logprobs 0', { logprobs: 0 }),
  completion('logprobs 3', { logprobs: 3, return_token_ids: true }),
  completion('tokens as ids', { logprobs: 2, return_tokens_as_token_ids: true }),
  completion('prompt_logprobs', { prompt_logprobs: 2, max_tokens: 2 }),
  completion('prompt_logprobs 0', { prompt_logprobs: 0, max_tokens: 2 }),
  completion('echo', { echo: true }),
  completion('echo of ids', { prompt: hello, echo: true }),
  completion('echo with logprobs', { echo: true, logprobs: 1 }),
  completion('echo alone', { echo: true, logprobs: 1, max_tokens: 0 }),
  completion('echo of two', { prompt: ['hello', 'abc'], echo: true, logprobs: 1, max_tokens: 1 }),
  completion('n', { ...twice, logprobs: 1 }),
  completion('n of two prompts', { ...twice, prompt: ['hello', 'abc'] }),
  completion('min_tokens', { prompt: 'Reverse the text: abc', max_tokens: 40, min_tokens: 30 }),
  completion('ignore_eos', { max_tokens: 40, ignore_eos: true }),
  completion('special tokens kept', { max_tokens: 40, ignore_eos: true, skip_special_tokens: false }),
  completion('allowed_token_ids', { allowed_token_ids: [97, 98], logprobs: 1 }),
  completion('logit_bias', { logit_bias: { 120: 100 }, logprobs: 1 }),
  completion('penalties', {
    repetition_penalty: 1.3,
    presence_penalty: 0.5,
    frequency_penalty: 0.7,
    max_tokens: 24,
    logprobs: 0,
  }),
  completion('truncated', { truncate_prompt_tokens: 3, return_token_ids: true }),
  completion('truncated on the right', { truncate_prompt_tokens: 3, truncation_side: 'right', return_token_ids: true }),
  completion('cache_salt', { cache_salt: 'a' }),
  completion('more than the window leaves', { prompt: long, max_tokens: 40, ignore_eos: true }),
  completion('choice', { structured_outputs: { choice: ['yes', 'no'] } }),
  completion('regex', { structured_outputs: { regex: '[0-9]{4}-[a-c]+x' }, max_tokens: 12 }),
  completion('stream', { ...streamed }),
  completion('stream of usage with every event', {
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  }),
  completion('stream without usage', { stream: true }),
  completion('stream with logprobs and ids', { ...streamed, logprobs: 2, return_token_ids: true }),
  completion('stream of n', { ...twice, ...streamed }),
  completion('stream of two prompts', { ...streamed, prompt: ['hello', 'abc'] }),
  completion('stream with echo', { ...streamed, echo: true }),
  completion('stream to a stop', { ...streamed, max_tokens: 24, stop: ['e'] }),
]

/** The model goes on with "hohohhhoh". */
const stops = [
  completion('stop string', { max_tokens: 24, stop: ['hhh'], return_token_ids: true }),
  completion('stop string, kept', { max_tokens: 24, stop: 'hhh', include_stop_str_in_output: true }),
  completion('stop token', { max_tokens: 24, stop_token_ids: [111], return_token_ids: true, logprobs: 0 }),
  completion('stop token, kept', { max_tokens: 24, stop_token_ids: [111], include_stop_str_in_output: true }),
]

const completionErrors = [
  completion('without a prompt', { prompt: null }),
  completion('empty text', { prompt: '' }),
  completion('empty list', { prompt: [] }),
  completion('a prompt that is a number', { prompt: 5 }),
  completion('an id that the model has not', { prompt: [5000] }),
  completion('too long', { prompt: Array.from({ length: 600 }, () => 97) }),
  completion('max_tokens too large', { max_tokens: 600 }),
  completion('max_tokens 0', { max_tokens: 0 }),
  completion('max_tokens -1', { max_tokens: -1 }),
  completion('max_tokens a text', { max_tokens: 'many' }),
  completion('another model', { model: 'none' }),
  completion('temperature -1', { temperature: -1 }),
  completion('top_p 2', { top_p: 2 }),
  completion('top_p 0', { temperature: 1, top_p: 0 }),
  completion('top_k -2', { temperature: 1, top_k: -2 }),
  completion('min_p 2', { temperature: 1, min_p: 2 }),
  completion('presence_penalty 3', { presence_penalty: 3 }),
  completion('repetition_penalty 0', { repetition_penalty: 0 }),
  completion('n 0', { n: 0 }),
  completion('n 2 and greedy', { n: 2 }),
  completion('logprobs 21', { logprobs: 21 }),
  completion('logprobs -2', { logprobs: -2 }),
  completion('prompt_logprobs 21', { prompt_logprobs: 21 }),
  completion('prompt_logprobs -2', { prompt_logprobs: -2 }),
  completion('prompt_logprobs in a stream', { prompt_logprobs: 1, stream: true }),
  completion('min_tokens above max_tokens', { min_tokens: 9 }),
  completion('min_tokens above what the window leaves', { prompt: long, max_tokens: 40, min_tokens: 20 }),
  completion('stop of an empty text', { stop: [''] }),
  completion('stop_token_ids of texts', { stop_token_ids: ['a'] }),
  completion('allowed_token_ids of none', { allowed_token_ids: [] }),
  completion('allowed_token_ids that are none', { allowed_token_ids: [5000] }),
  completion('logit_bias of a word', { logit_bias: { word: 1 } }),
  completion('logit_bias of no token', { logit_bias: { 5000: 1 } }),
  completion('truncated to more than the window', { truncate_prompt_tokens: 600 }),
  completion('stream_options without a stream', { stream_options: { include_usage: true } }),
  completion('a field that nobody has', { nobody_has_this: 1 }),
  completion('a broken regex', { structured_outputs: { regex: '(' } }),
  { name: 'completion: no JSON', path: '/v1/completions', body: '{"model": ' },
  { name: 'completion: a list', path: '/v1/completions', body: '[1]' },
  { name: 'completion: text/plain', path: '/v1/completions', body: '{}', type: 'text/plain' },
  get('completion: GET', '/v1/completions'),
  post('no route', '/v1/nothing'),
]

const chats = [
  chat('text', {}),
  chat('all of the window', { max_tokens: null }),
  chat('more than the window leaves', { messages: [{ role: 'user', content: 'a'.repeat(400) }], max_tokens: 300, ignore_eos: true }),
  chat('max_completion_tokens', { max_tokens: null, max_completion_tokens: 3 }),
  chat('logprobs', { logprobs: true, return_token_ids: true }),
  chat('top_logprobs', { logprobs: true, top_logprobs: 3 }),
  chat('tokens as ids', { logprobs: true, top_logprobs: 1, return_tokens_as_token_ids: true }),
  chat('prompt_logprobs', { prompt_logprobs: 1, max_tokens: 1, return_token_ids: true }),
  chat('n', { ...twice, logprobs: true }),
  chat('system and parts', { messages: [{ role: 'system', content: 'short' }, { role: 'user', content: [{ type: 'text', text: 'a' }, { type: 'text', text: 'b' }] }], return_token_ids: true }),
  chat('no generation prompt', { add_generation_prompt: false, return_token_ids: true }),
  chat('goes on', { messages: [...messages, { role: 'assistant', content: 'It is' }], add_generation_prompt: false, continue_final_message: true, return_token_ids: true }),
  chat('stop', { max_tokens: 24, stop: ['e', '7'] }),
  chat('choice', { structured_outputs: { choice: ['yes', 'no'] } }),
  chat('schema', { max_tokens: 40, response_format: { type: 'json_schema', json_schema: { name: 'a', schema: { enum: ['left', 'right'] } } } }),
  chat('stream', { ...streamed }),
  chat('stream without usage', { stream: true }),
  chat('stream with logprobs and ids', { ...streamed, logprobs: true, top_logprobs: 2, return_token_ids: true }),
  chat('stream of n', { ...twice, ...streamed }),
  chat('stream to the end', { ...streamed, max_tokens: null }),
  chat('a token that is not likely', { allowed_token_ids: [97], logprobs: true, top_logprobs: 2, max_tokens: 2 }),
  chat('a call', { ...calling }),
  chat('a call, streamed', { ...calling, ...streamed }),
  chat('two calls', { ...calling, structured_outputs: { choice: [`I ask. ${call}\n${call}`] } }),
  chat('two calls, streamed', { ...calling, ...streamed, structured_outputs: { choice: [`I ask. ${call}\n${call}`] } }),
  chat('a call that is none', { ...calling, tool_choice: 'none' }),
  chat('a call of a function by name', { ...calling, structured_outputs: null, tool_choice: { type: 'function', function: { name: 'weather' } } }),
  chat('a call of a function that is not there', { ...calling, tool_choice: { type: 'function', function: { name: 'time' } } }),
  chat('no messages', { messages: [] }),
  chat('without messages', { messages: null }),
  chat('a message without a role', { messages: [{ content: 'a' }] }),
  chat('content that is a number', { messages: [{ role: 'user', content: 5 }] }),
  chat('too long', { messages: [{ role: 'user', content: 'a'.repeat(600) }] }),
  chat('max_tokens too large', { max_tokens: 600 }),
  chat('max_tokens 0', { max_tokens: 0 }),
  chat('another model', { model: 'none' }),
  chat('top_logprobs alone', { top_logprobs: 2 }),
  chat('top_logprobs 21', { logprobs: true, top_logprobs: 21 }),
  chat('goes on and begins', { add_generation_prompt: true, continue_final_message: true }),
  chat('prompt_logprobs in a stream', { prompt_logprobs: 1, stream: true }),
  chat('temperature a text', { temperature: 'hot' }),
] // prettier-ignore

const generates = [
  generate('ids', {}),
  generate('logprobs', { logprobs: 2 }),
  generate('logprobs 0', { logprobs: 0 }),
  generate('prompt_logprobs', { prompt_logprobs: 1, max_tokens: 1 }),
  generate('a token that is not likely', { allowed_token_ids: [97], logprobs: 2, max_tokens: 2 }),
  generate('n', { temperature: 1, top_k: 1, n: 2 }),
  generate('prompt ids', {}, { return_token_ids: true }),
  generate('more than the window leaves', { max_tokens: 40, ignore_eos: true }, { token_ids: long }),
  generate('stream', { logprobs: 1 }, streamed),
  generate('without sampling_params', {}, { sampling_params: null }),
  generate('no ids', {}, { token_ids: [] }),
  generate('ids of texts', {}, { token_ids: ['a'] }),
  generate('an id that the model has not', {}, { token_ids: [5000] }),
  generate('max_tokens too large', { max_tokens: 600 }),
  generate('too long', {}, { token_ids: Array.from({ length: 600 }, () => 97) }),
  generate('temperature -1', { temperature: -1 }),
  generate('another model', {}, { model: 'none' }),
]

const tokens = [
  post('tokenize: text', '/tokenize', { model, prompt: 'héllo' }),
  post('tokenize: its strings', '/tokenize', { model, prompt: 'héllo', return_token_strs: true }),
  post('tokenize: messages', '/tokenize', { model, messages }),
  post('tokenize: without a generation prompt', '/tokenize', { model, messages, add_generation_prompt: false }),
  post('tokenize: nothing', '/tokenize', { model }),
  post('tokenize: an empty text', '/tokenize', { model, prompt: '' }),
  post('tokenize: another model', '/tokenize', { model: 'none', prompt: 'a' }),
  post('detokenize', '/detokenize', { model, tokens: [...hello, 195, 169] }),
  post('detokenize: none', '/detokenize', { model, tokens: [] }),
  post('detokenize: texts', '/detokenize', { model, tokens: ['a'] }),
]

const load = (name: string, body: object) => post(`load: ${name}`, '/v1/load_lora_adapter', body)
const unload = (name: string, body: object) => post(`unload: ${name}`, '/v1/unload_lora_adapter', body)
const style = { lora_name: 'style', lora_path: '{adapters}/style' }
/** Of a server with adapters; vLLM's ends at prompt_logprobs where adapters are on. */
export const adapterRequests: Exchange[] = [
  load('an adapter', style),
  get('models with an adapter', '/v1/models'),
  completion('an adapter', { model: 'style', logprobs: 0, max_tokens: 12 }),
  completion('below the adapter', { logprobs: 0, max_tokens: 12 }),
  chat('an adapter', { model: 'style', logprobs: true }),
  generate('an adapter', { logprobs: 0 }, { model: 'style' }),
  load('a name that is taken', style),
  load('in place', { lora_name: 'style', lora_path: '{adapters}/other', load_inplace: true }),
  load('a folder that is not there', { lora_name: 'gone', lora_path: '{adapters}/gone' }),
  load('a rank that is too large', { lora_name: 'wide', lora_path: '{adapters}/wide' }),
  load('without a path', { lora_name: 'gone' }),
  load('without a name', { lora_path: '{adapters}/style' }),
  unload('an adapter', { lora_name: 'style' }),
  unload('an adapter that is gone', { lora_name: 'style' }),
  unload('without a name', {}),
  completion('an adapter that is gone', { model: 'style' }),
  load('another', { lora_name: 'other', lora_path: '{adapters}/other' }),
  completion('another adapter', { model: 'other', logprobs: 0, max_tokens: 12 }),
  unload('another', { lora_name: 'other' }),
]

const bare = (name: string, path: string): Exchange => ({ name, path, method: 'POST' })
const control = [
  get('is it paused', '/is_paused'),
  bare('pause', '/pause?mode=keep'),
  get('is it paused, when it is', '/is_paused'),
  { ...completion('that waits for the resume', { logprobs: 0 }), background: true },
  bare('resume', '/resume'),
  bare('pause that aborts', '/pause'),
  bare('resume again', '/resume'),
  bare('pause that waits', '/pause?mode=wait'),
  bare('resume once more', '/resume'),
  bare('resume what runs', '/resume'),
  bare('pause of no mode', '/pause?mode=never'),
  bare('reset_prefix_cache', '/reset_prefix_cache'),
  completion('after all that', { logprobs: 0 }),
  get('weight_info', '/weight_info'),
  post('update_weight_version', '/update_weight_version', { new_version: 'second' }),
  get('weight_info of a version', '/weight_info'),
  generate('of a named version', {}),
  post('update_weight_version of nothing', '/update_weight_version', {}),
  post('rpc of no method', '/collective_rpc', {}),
]

/** Weights that change. */
export const reloading: Exchange[] = [
  post('reload_weights', '/collective_rpc', { method: 'reload_weights', kwargs: { weights_path: '{weights}' } }),
  bare('reset_prefix_cache after the reload', '/reset_prefix_cache'),
  completion('of the new weights', { logprobs: 0, max_tokens: 16 }),
  chat('of the new weights', { logprobs: true }),
  bare('pause for a reload', '/pause?mode=keep'),
  post('reload_weights of its own', '/collective_rpc', { method: 'reload_weights' }),
  bare('reset_prefix_cache after that', '/reset_prefix_cache'),
  bare('resume after a reload', '/resume'),
  completion('of the old weights', { logprobs: 0, max_tokens: 16 }),
]

export const requests: Exchange[] = [
  ...status, ...completions, ...stops, ...completionErrors, ...chats, ...generates, ...tokens, ...control,
] // prettier-ignore
