// The values of weights that are stored in GGUF's blocks (ggml's block_q* structures; the constants of a format are in quantised.ts), rounded to
// bf16. K256: blocks of 256 values, else of 32.
// Every product of a scale and a small integer is exact in float32, so each value is rounded once, however a compiler fuses operations: the bits are
// those of model/gguf/dequant.ts. The including file defines word_of(which, at), which is word `at` of the blocks of weight `which`. Loading words is
// separate from decoding them, so that loads can be prefetched.

// Words of four values: those of their stretch of 32 values (with two-byte scales after all blocks, `stretch` ends with place & 1), and their own.
struct Words { stretch: vec4u, own: vec4u }
// What the 32 values of a stretch have in common.
struct Stretch { scale: f32, least: f32, fifths: u32 }

fn half_word(word: u32, second: bool) -> u32 { return select(word & 0xffffu, word >> 16u, second); }

// The value of f16 bits. Not unpack2x16float, as scales are often subnormal, and a device may flush those to 0.
fn half(bits: u32) -> f32 {
  let sign = (bits & 0x8000u) << 16u;
  let exponent = (bits >> 10u) & 31u;
  let mantissa = bits & 1023u;
  let small = bitcast<u32>(f32(i32(mantissa)) * 5.9604644775390625e-8);  // 2^-24
  let normal = ((exponent + 112u) << 23u) | (mantissa << 13u);
  let special = 0x7f800000u | select(0u, 0x400000u, mantissa != 0u);
  return bitcast<f32>(sign | select(select(normal, special, exponent == 31u), small, exponent == 0u));
}

// The four bytes of a word as numbers, or their low or high halves, with one bit of each of `fifths` above.
fn signed_of(word: u32) -> vec4f { return vec4f(bitcast<vec4i>(vec4u(word) << vec4u(24u, 16u, 8u, 0u)) >> vec4u(24u)); }
fn numbers(word: u32) -> vec4f { return vec4f(bitcast<vec4i>((vec4u(word) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u))); }
fn halves_of(word: u32, shift: u32) -> u32 { return (word >> shift) & 0x0f0f0f0fu; }

// The common words of a stretch in block number `place`; `scales` is the first word of the scales that come after all blocks.
fn common_words(which: u32, place: u32, scales: u32) -> vec4u {
  let at = place * $(WORDS)u;
#if K256
#if SIX
  return vec4u(word_of(which, scales + place / 2u), 0u, 0u, place & 1u);
#else
  return vec4u(word_of(which, at), word_of(which, at + 1u), word_of(which, at + 2u), word_of(which, at + 3u));
#endif
#else
#if MINIMUM
  let first = word_of(which, at);
#else
  let first = word_of(which, scales + place / 2u);
#endif
#if FIVE
  return vec4u(first, word_of(which, at + $(QUANTS / 4 - 1)u), 0u, place & 1u);
#else
  return vec4u(first, 0u, 0u, place & 1u);
#endif
#endif
}
// The own words of values 4i .. 4i + 3, i in 0 .. 7, of stretch j (0 .. 7; 0 in blocks of 32).
fn own_words(which: u32, place: u32, j: u32, i: u32) -> vec4u {
  let at = place * $(WORDS)u;
#if K256
#if SIX
  // 128 bytes of low halves, 64 bytes of upper two bits, 16 signed scales (one for 16 values).
  let n = j / 4u;
  return vec4u(word_of(which, at + 16u * n + 8u * (j & 1u) + i), word_of(which, at + 32u + 8u * n + i), word_of(which, at + 48u + j / 2u), 0u);
#else
  // Stretches 2m and 2m + 1 are the low and high halves of the same 32 bytes.
  let q = word_of(which, at + $(QUANTS / 4)u + 8u * (j / 2u) + i);
#if FIVE
  return vec4u(q, word_of(which, at + 4u + i), 0u, 0u);
#else
  return vec4u(q, 0u, 0u, 0u);
#endif
#endif
#else
#if EIGHT
  return vec4u(word_of(which, at + i), 0u, 0u, 0u);
#else
  return vec4u(word_of(which, at + $(QUANTS / 4)u + (i & 3u)), 0u, 0u, 0u);
#endif
#endif
}

#if K256
fn stretch_of(words: vec4u, j: u32) -> Stretch {
#if SIX
  return Stretch(half(half_word(words.x, words.w == 1u)), 0.0, 0u);
#else
  // Six-bit scale and minimum, packed in 12 bytes.
  let shift = 8u * (j & 3u);
  let scales = words.y >> shift;
  let minima = words.z >> shift;
  let more = words.w >> shift;
  let low = j < 4u;
  let scale = select((more & 15u) | ((scales >> 2u) & 48u), scales & 63u, low);
  let least = select(((more >> 4u) & 15u) | ((minima >> 2u) & 48u), minima & 63u, low);
  return Stretch(half(words.x & 0xffffu) * f32(i32(scale)), half(words.x >> 16u) * f32(i32(least)), 0u);
#endif
}
fn four(words: vec4u, j: u32, s: Stretch, i: u32) -> vec4f {
#if SIX
  let part = j & 3u;
  let low = halves_of(words.x, 4u * (part / 2u));
  let high = (words.y >> (2u * part)) & 0x03030303u;
  let scale = f32(bitcast<i32>(words.z << (24u - 8u * ((2u * j + i / 4u) & 3u))) >> 24u);
  return (s.scale * scale) * (numbers(low | (high << 4u)) - 32.0);
#else
  var q = halves_of(words.x, 4u * (j & 1u));
#if FIVE
  // Bit j of byte l of 32 is the fifth bit of value l of stretch j.
  q |= ((words.y >> j) & 0x01010101u) << 4u;
#endif
  return numbers(q) * s.scale - s.least;
#endif
}
#else
fn stretch_of(words: vec4u, j: u32) -> Stretch {
#if MINIMUM
  let scale = half(words.x & 0xffffu);
  let least = half(words.x >> 16u);
#else
  let scale = half(half_word(words.x, words.w == 1u));
  let least = 0.0;
#endif
  return Stretch(scale, least, words.y);
}
fn four(words: vec4u, j: u32, s: Stretch, i: u32) -> vec4f {
#if EIGHT
  return signed_of(words.x) * s.scale;
#else
  // Value j < 16 is the low half of byte j, value j + 16 its high half.
  var q = halves_of(words.x, i & 4u);
#if FIVE
  // Bit j of a word is the fifth bit of value j.
  let bits = s.fifths >> (4u * i);
  q |= ((bits & 1u) << 4u) | ((bits & 2u) << 11u) | ((bits & 4u) << 18u) | ((bits & 8u) << 25u);
#endif
#if MINIMUM
  return numbers(q) * s.scale + s.least;
#else
  return (numbers(q) - $(CENTER).0) * s.scale;
#endif
#endif
}
#endif

// Rounds to bf16 bits in the upper half of each word, to nearest, ties to even. No NaN that `half` gives has bits from which this would carry out.
fn rounded(v: vec4f) -> vec4u {
  let u = bitcast<vec4u>(v);
  return u + 0x7fffu + ((u >> vec4u(16u)) & vec4u(1u));
}

// The words of values c .. c + 3 in a row of `columns` values of weight `which`, and below, their values; c is a multiple of 4.
fn words_at(which: u32, row: u32, columns: u32, c: u32, scales: u32) -> Words {
  let place = row * (columns / $(VALUES)u) + c / $(VALUES)u;
  return Words(common_words(which, place, scales), own_words(which, place, c / 32u % $(VALUES / 32)u, c / 4u % 8u));
}
fn values_of(words: Words, c: u32) -> vec4f {
  let j = c / 32u % $(VALUES / 32)u;
  return bitcast<vec4f>(rounded(four(words.own, j, stretch_of(words.stretch, j), c / 4u % 8u)) & vec4u(0xffff0000u));
}
