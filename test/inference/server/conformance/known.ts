/** Where our answers differ from vLLM 0.32's, and why. docs/api.md says the same in its words. What is not here is the same, or a test fails. */

export interface KnownDifference {
  /** Names of requests. */
  of: RegExp
  /** Places in the answer: status, type, body... */
  path: RegExp
  why: string
}

export const knownDifferences: readonly KnownDifference[] = [
  { of: /^models/, path: /permission$/, why: "OpenAI's models have no permission any more" },
  { of: /./, path: /usage\.prompt_tokens_details$/, why: 'vLLM tells it with --enable-prompt-tokens-details' },
  { of: /^(completion|chat): .*stream/, path: /^body\.(first|ending)\.system_fingerprint$/, why: 'OpenAI has it in each event; vLLM in the last' },
  { of: /^completion: tokens as ids$/, path: /text_offset\[\]$/, why: 'offsets are into the text; vLLM counts the letters of "token_id:5"' },
  { of: /^chat: tokens as ids$/, path: /top_logprobs\[\]\.bytes\.length$/, why: "bytes are the token's, as beside it; vLLM has those of the letters of \"token_id:5\" there" },
  { of: /^completion: echo (with|alone|of two)/, path: /choices\[\]\.prompt_logprobs$/, why: 'they are in logprobs already; nobody asked for them twice' },
  { of: /^completion: echo alone$/, path: /usage\.(completion|total)_tokens$/, why: 'max_tokens 0 makes no token' },
  { of: /^completion: stream with echo$/, path: /prompt_token_ids$/, why: 'they come where return_token_ids asks for them' },
  { of: /^chat: no generation prompt$/, path: /message\.role$/, why: "an answer is the assistant's; vLLM repeats the role of the last message" },
  { of: /^chat: prompt_logprobs$/, path: /decoded_token$/, why: 'a part of a character is U+FFFD; vLLM leaves it empty where the next token has the rest' },
  { of: /^generate: /, path: /\.token$/, why: 'token is what old versions of vLLM have, token_id what new ones have' },
  { of: /^generate: (logprobs 0|an adapter)$/, path: /\.(rank|top_logprobs\.length)$/, why: 'ranks are counted where the most likely tokens are asked for' },
  { of: /^generate: stream$/, path: /\.(created|model)$/, why: 'as in the answer that is no stream' },
  { of: /^generate: an adapter$/, path: /weight_versions\[\]\.version$/, why: 'tokens of an adapter tell which load of it made them' },
  { of: /^completion: of the old weights$/, path: /logprobs/, why: "without a path the model's own files are read; vLLM reads those of the last reload" },
  { of: /^(un)?load: /, path: /^type$/, why: 'a text says that it is one' },
  { of: /^load: a rank that is too large$/, path: /^(status|body\.error\.(type|code))$/, why: "the client's mistake, not the server's" },
  { of: /^(chat|generate): a token that is not likely$/, path: /top_logprobs/, why: 'the most likely tokens, as OpenAI has them; vLLM puts the sampled one in place of the last' },
  { of: /^chat: (a|two) calls?/, path: /tool_calls\[\]\.id$/, why: 'ids of calls begin as those of OpenAI' },
  { of: /^chat: two calls/, path: /content$/, why: 'white space before a call is left out: templates write it' },
  { of: /^chat: a call of a function by name$/, path: /(arguments|content|_tokens)$/, why: "arguments are held to the function's schema; vLLM's here are false" },
  // Errors: vLLM's are of several makes.
  { of: /./, path: /^body\.error\.param$/, why: 'every error about a field names it, as the request has it' },
  { of: /./, path: /^body\.error\.type$/, why: 'one type for a status; vLLM says "Bad Request" or "InvalidUserInput" at times' },
  { of: /^(completion: GET|no route)$/, path: /^body\.(error|detail)$/, why: "these have OpenAI's shape too" },
] // prettier-ignore
