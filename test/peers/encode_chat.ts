/** Writes the token ids of a chat, a user's message a word: encode_chat.ts MODEL TEXT... (JSON, a list of ids each). */
import { openModel } from '../../src/model/files/open.ts'

const [ref, ...texts] = process.argv.slice(2)
const model = await openModel(ref)
const tokenizer = await model.tokenizer()
console.log(JSON.stringify(texts.map((content) => tokenizer.encodeChat([{ role: 'user', content }]))))
model.close()
