/** /tokenize and /detokenize: text to the model's tokens, and back. */
import type { Context } from 'hono'
import { badRequest } from './errors.ts'
import type { App, ServerContext } from './parts.ts'
import { checkIds, encodeChat, encodeText } from './prompt.ts'
import { modelOf } from './route.ts'
import { tokenizeBody, type TemplateBody } from './schemas/chat.ts'
import { detokenizeBody } from './schemas/completions.ts'

export function addTokens(app: App, server: ServerContext): void {
  const { tokenizer } = server.parts

  app.post('/tokenize', async (context: Context) => {
    const body = await server.bodies.read(context, tokenizeBody)
    modelOf(server, body.model)
    const given = (value: unknown) => value !== undefined && value !== null
    if (given(body.prompt) === given(body.messages)) throw badRequest('prompt: send either prompt or messages.', 'prompt')
    const options = { field: 'prompt', addSpecialTokens: body.add_special_tokens ?? true }
    const ids = body.messages
      ? encodeChat(server, body as TemplateBody).ids
      : body.prompt === ''
        ? tokenizer.encode('', options)
        : encodeText(server, body.prompt!, options)
    return context.json({
      count: ids.length,
      max_model_len: server.engine.maxLength,
      tokens: ids,
      token_strs: body.return_token_strs === true ? ids.map((id) => tokenizer.idToToken(id) ?? '') : null,
    })
  })

  app.post('/detokenize', async (context: Context) => {
    const body = await server.bodies.read(context, detokenizeBody)
    modelOf(server, body.model)
    return context.json({ prompt: tokenizer.decode(checkIds(server, body.tokens, 'tokens')) })
  })
}
