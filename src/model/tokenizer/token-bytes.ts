/** The bytes of a vocabulary's tokens. */
const utf8 = new TextEncoder()

/** The byte of each character of the byte-level alphabet (GPT-2's): printable bytes are themselves, the others follow from U+0100 on. */
export const byteOfSign = new Map<string, number>()
for (let byte = 0, next = 256; byte < 256; byte++) {
  const printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
  byteOfSign.set(String.fromCharCode(printable ? byte : next++), byte)
}

/**
 * The bytes of a token as a vocabulary spells it. `text`: it is spelled as it is, as added tokens are; `byte-level`: in GPT-2's alphabet of
 * bytes; `pieces`: as SentencePiece does (the space that some of its decoders drop at the beginning of a text stays).
 */
export function bytesOfToken(token: string, spelling: 'text' | 'byte-level' | 'pieces'): Uint8Array {
  if (spelling === 'byte-level') return bytesOfAlphabet(token)
  return spelling === 'pieces' ? bytesOfPiece(token) : utf8.encode(token)
}

function bytesOfAlphabet(token: string): Uint8Array {
  const bytes = new Uint8Array(token.length)
  for (let i = 0; i < token.length; i++) {
    const byte = byteOfSign.get(token[i])
    if (byte === undefined) return utf8.encode(token)
    bytes[i] = byte
  }
  return bytes
}

/** A piece of SentencePiece: a lower one eighth block is a space, <0x0A> a byte. */
function bytesOfPiece(token: string): Uint8Array {
  const byte = /^<0x([0-9A-F]{2})>$/.exec(token)
  return byte ? Uint8Array.of(Number.parseInt(byte[1], 16)) : utf8.encode(token.replaceAll('\u2581', ' '))
}
