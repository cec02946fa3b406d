// The values of a weight that is held in GGUF's blocks (ggml's block_q* structures, quantised.ts), rounded to bf16: rows first_row .. of the weight become rows
// w_row .. of a storage slice as of weight.wgsl, or of the buffer that is copied into its texture (panels of W_PANEL rows; 1: row after row). K256: blocks of
// 256 values, else of 32. Every product of a scale and a small integer is exact in float32, and so each value is rounded once, however a compiler fuses: the
// bits of gguf-dequant.ts.
// Eight values an invocation; for CPU drivers (PANELS), which divide lane by lane and store eight lanes as one stretch, a workgroup is the rows of a panel and
// goes along them, 32 values a turn.
struct Params { rows: u32, k: u32, first_row: u32, w_row: u32, w_texels: u32, scales: u32 }
@group(0) @binding(0) var<storage, read> blocks: array<u32>;
@group(0) @binding(1) var<storage, read_write> w_data: array<vec4u>;
#if !PANELS
#include "flat.wgsl"
#endif

fn half_word(word: u32, second: bool) -> u32 { return select(word & 0xffffu, word >> 16u, second); }

// The value of f16 bits. Not unpack2x16float: scales are often subnormal, and a device may make those 0.
fn half(bits: u32) -> f32 {
  let sign = (bits & 0x8000u) << 16u;
  let exponent = (bits >> 10u) & 31u;
  let mantissa = bits & 1023u;
  let small = bitcast<u32>(f32(i32(mantissa)) * 5.9604644775390625e-8);  // 2^-24
  let normal = ((exponent + 112u) << 23u) | (mantissa << 13u);
  let special = 0x7f800000u | select(0u, 0x400000u, mantissa != 0u);
  return bitcast<f32>(sign | select(select(normal, special, exponent == 31u), small, exponent == 0u));
}

// Four bytes of a word as numbers, or the halves of them, with one bit of each of `fifths` above.
fn signed_of(word: u32) -> vec4f { return vec4f(bitcast<vec4i>(vec4u(word) << vec4u(24u, 16u, 8u, 0u)) >> vec4u(24u)); }
fn numbers(word: u32) -> vec4f { return vec4f(bitcast<vec4i>((vec4u(word) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u))); }
fn halves_of(word: u32, shift: u32) -> u32 { return (word >> shift) & 0x0f0f0f0fu; }

// What 32 values have in common.
struct Stretch { scale: f32, least: f32, fifths: u32 }

#if K256
// Stretch j (0 .. 7) of the block that begins with word `at`; `place` is the block's among all.
fn stretch_of(at: u32, place: u32, j: u32) -> Stretch {
#if SIX
  return Stretch(half(half_word(blocks[p.scales + place / 2u], (place & 1u) == 1u)), 0.0, 0u);
#else
  // Six-bit scale and minimum, packed in 12 bytes.
  let both = blocks[at];
  let shift = 8u * (j & 3u);
  let scales = blocks[at + 1u] >> shift;
  let minima = blocks[at + 2u] >> shift;
  let more = blocks[at + 3u] >> shift;
  let low = j < 4u;
  let scale = select((more & 15u) | ((scales >> 2u) & 48u), scales & 63u, low);
  let least = select(((more >> 4u) & 15u) | ((minima >> 2u) & 48u), minima & 63u, low);
  return Stretch(half(both & 0xffffu) * f32(i32(scale)), half(both >> 16u) * f32(i32(least)), 0u);
#endif
}
// Its values 4i .. 4i + 3, i in 0 .. 7.
fn four(at: u32, j: u32, s: Stretch, i: u32) -> vec4f {
#if SIX
  // 128 bytes of low halves, 64 bytes of upper two bits, 16 signed scales (one for 16 values).
  let n = j / 4u;
  let part = j & 3u;
  let low = halves_of(blocks[at + 16u * n + 8u * (part & 1u) + i], 4u * (part / 2u));
  let high = (blocks[at + 32u + 8u * n + i] >> (2u * part)) & 0x03030303u;
  let scales = blocks[at + 48u + j / 2u];
  let scale = f32(bitcast<i32>(scales << (24u - 8u * ((2u * j + i / 4u) & 3u))) >> 24u);
  return (s.scale * scale) * (numbers(low | (high << 4u)) - 32.0);
#else
  // Stretches 2m and 2m + 1 are the low and high halves of the same 32 bytes.
  var q = halves_of(blocks[at + $(QUANTS / 4)u + 8u * (j / 2u) + i], 4u * (j & 1u));
#if FIVE
  // Bit j of byte l of 32 is the fifth bit of value l of stretch j.
  q |= ((blocks[at + 4u + i] >> j) & 0x01010101u) << 4u;
#endif
  return numbers(q) * s.scale - s.least;
#endif
}
#else
fn stretch_of(at: u32, place: u32, j: u32) -> Stretch {
#if MINIMUM
  let both = blocks[at];
  let scale = half(both & 0xffffu);
  let least = half(both >> 16u);
#else
  let scale = half(half_word(blocks[p.scales + place / 2u], (place & 1u) == 1u));
  let least = 0.0;
#endif
#if FIVE
  return Stretch(scale, least, blocks[at + $(QUANTS / 4 - 1)u]);
#else
  return Stretch(scale, least, 0u);
#endif
}
fn four(at: u32, j: u32, s: Stretch, i: u32) -> vec4f {
#if EIGHT
  return signed_of(blocks[at + i]) * s.scale;
#else
  // Value j < 16 is the low half of byte j, value j + 16 its high half.
  var q = halves_of(blocks[at + $(QUANTS / 4)u + (i & 3u)], i & 4u);
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

// Their bf16 bits, to nearest, ties to even; no NaN that comes of `half` has bits that would be carried out of.
fn rounded(v: vec4f) -> vec4u {
  let u = bitcast<vec4u>(v);
  return u + 0x7fffu + ((u >> vec4u(16u)) & vec4u(1u));
}
fn bits_of(lo: vec4f, hi: vec4f) -> vec4u {
  let low = rounded(lo);
  let high = rounded(hi);
  return (vec4u(low.xz, high.xz) >> vec4u(16u)) | (vec4u(low.yw, high.yw) & vec4u(0xffff0000u));
}

#if PANELS
@compute @workgroup_size(8)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let row = (group.x + group.y * 65535u) * $(W_PANEL)u + lane % $(W_PANEL)u;
  if (row >= p.rows) { return; }
  let stretches = p.k / 32u;
  let first = (p.first_row + row) * (stretches / $(VALUES / 32)u);
  let at = p.w_row + row;
  let place = at / $(W_PANEL)u * p.w_texels * $(W_PANEL)u + at % $(W_PANEL)u;
  for (var n = lane / $(W_PANEL)u; n < stretches; n += $(8 / W_PANEL)u) {
    let block = first + n / $(VALUES / 32)u;
    let j = n % $(VALUES / 32)u;
    let begin = block * $(WORDS)u;
    let s = stretch_of(begin, block, j);
#for G in 0..4
    w_data[place + (4u * n + $(G)u) * $(W_PANEL)u] = bits_of(four(begin, j, s, $(2 * G)u), four(begin, j, s, $(2 * G + 1)u));
#end
  }
}
#else
fn one(e: u32) {
  let groups = p.k / 8u;
  if (e >= p.rows * groups) { return; }
  let row = e / groups;
  let c = e % groups;
  let block = (p.first_row + row) * (p.k / $(VALUES)u) + c / $(VALUES / 8)u;
  let j = c / 4u % $(VALUES / 32)u;
  let i = 2u * (c & 3u);
  let begin = block * $(WORDS)u;
  let s = stretch_of(begin, block, j);
  w_data[(p.w_row + row) * p.w_texels + c] = bits_of(four(begin, j, s, i), four(begin, j, s, i + 1u));
}
#endif
