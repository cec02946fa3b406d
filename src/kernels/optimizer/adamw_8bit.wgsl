// AdamW as in adamw.wgsl, with both moments in 8 bits per value (arXiv 2110.02861), in blocks of 256 values of a flat bank, one workgroup each.
//   m = M[code] * scale.x, v = V[code] * scale.y, scale = (largest |m|, largest v) of the block, float32; M, V: the dynamic maps of codes.ts
// Moments are decoded, updated, used for the step as they are, and then rounded to the nearest code of the new scale. One exception: a v that is not
// 0 never becomes 0, but gets at least the smallest code. With 0, a value without gradient in the next step would be divided by eps alone.
// Codes lie four to a word, the first in the lowest byte. A maximum does not depend on the order, so the codes do not depend on the lanes.
struct Params { blocks: u32, decay: f32, m_weight: f32, beta2: f32, one_minus_beta2: f32, step_size: f32, root_correction2: f32, eps: f32 }
@group(0) @binding(0) var<storage, read_write> w: array<vec4f>;
@group(0) @binding(1) var<storage, read> grad: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> m: array<u32>;
@group(0) @binding(3) var<storage, read_write> v: array<u32>;
@group(0) @binding(4) var<storage, read_write> scale: array<vec2f>;
@group(0) @binding(5) var<storage, read> norm: array<f32>;
#include "lanes.wgsl"

// A map has levels e = 0 .. 6 of n = cells * 2^e values each: 10^(e-6) * (0.1 + 0.9 (c + 1/2) / n), c = 0 .. n - 1; and also 0 and 1. q = n + c
// numbers the values upwards from `cells` on; 128 cells is the value 1.

// n and 1 / n follow from the exponent of q, and `low` is 10^(e-7): the value is low (1 + 9 (c + 1/2) / n).
fn widen(q: vec4u, cells: u32) -> vec4f {
  var low = vec4f(1e-7);
#for e in 1..7
  low = select(low, vec4f(1e-$(7-e)), q >= vec4u(cells * $(2**e)u));
#end
  let real = vec4f(q);
  let exponent = (bitcast<vec4u>(real) & vec4u(0x7f800000u));
  let n = bitcast<vec4f>(exponent);
  let one_of_n = bitcast<vec4f>(vec4u(0x7f000000u) - exponent);
  let value = low * fma((real - n + 0.5) * one_of_n, vec4f(9.0), vec4f(1.0));
  return select(select(value, vec4f(1.0), q >= vec4u(128u * cells)), vec4f(0.0), q < vec4u(cells));
}

// The map's value nearest to x in 0 .. 1, except 0. Level e ends half way to the first value of the next level, at 10^(e-6) (1 + 0.9 / n).
fn nearest(x: vec4f, cells: u32) -> vec4u {
  var n = vec4f(f32(cells));
  var inverse = vec4f(1e6);
#for e in 1..7
  let up$(e) = x > vec4f(1e-$(7-e) * (1.0 + 0.9 / (f32(cells) * $(2**(e-1)).0)));
  n = select(n, vec4f(f32(cells) * $(2**e).0), up$(e));
  inverse = select(inverse, vec4f(1e$(6-e)), up$(e));
#end
  let cell = clamp(floor(fma(x * inverse, n * (1.0 / 0.9), n * (-1.0 / 9.0))), vec4f(0.0), n - 1.0);
  return select(vec4u(n + cell), vec4u(128u * cells), x > vec4f(1.0 - 0.225 / (f32(cells) * 64.0)));
}

fn bytes(word: u32) -> vec4u { return (vec4u(word) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u); }
fn word(codes: vec4u) -> u32 { return codes.x | (codes.y << 8u) | (codes.z << 16u) | (codes.w << 24u); }

// Code 127 is 0; codes above it are q = 1 .. 128, codes below it -1 .. -127 (there is no value -1).
fn m_widen(codes: vec4u) -> vec4f {
  let size = vec4i(codes) - 127;
  let value = widen(vec4u(abs(size)), 1u);
  return select(value, -value, size < vec4i(0));
}
fn m_codes(x: vec4f) -> vec4u {
  let size = abs(x);
  let q = vec4i(select(nearest(size, 1u), vec4u(0u), size <= vec4f(2.75e-7)));
  return vec4u(select(127 + q, 127 - min(q, vec4i(127)), x < vec4f(0.0)));
}
// Code 0 is 0, code c is q = c + 1.
fn v_widen(codes: vec4u) -> vec4f { return widen(codes + 1u, 2u); }
fn v_codes(x: vec4f) -> vec4u { return select(nearest(x, 2u) - 1u, vec4u(0u), x <= vec4f(0.0)); }

// New moments wait here for the scale, each lane's own. A loop and this memory are a tenth of the code that eight unrolled iterations would be.
var<workgroup> new_m: array<vec4f, 64>;
var<workgroup> new_v: array<vec4f, 64>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) {
  let block = group.x + group.y * 65535u;
  if (block >= p.blocks || norm[2] == 0.0) { return; }
  let clip = norm[1];
  let old = scale[block];
  var most_m = vec4f(0.0);
  var most_v = vec4f(0.0);
  for (var t = lane; t < 64u; t += LANES) {
    let at = block * 64u + t;
    let g = grad[at] * clip;
    let m_old = m_widen(bytes(m[at])) * old.x;
#if FROM_G
    let m_new = fma(vec4f(p.m_weight), m_old - g, g);
#else
    let m_new = fma(vec4f(p.m_weight), g - m_old, m_old);
#endif
    let v_new = fma(p.one_minus_beta2 * g, g, p.beta2 * (v_widen(bytes(v[at])) * old.y));
    let denominator = sqrt(v_new) / p.root_correction2 + p.eps;
    w[at] = fma(vec4f(-p.step_size), m_new / denominator, w[at] * p.decay);
    most_m = max(most_m, abs(m_new));
    most_v = max(most_v, v_new);
    new_m[t] = m_new;
    new_v[t] = v_new;
  }
  let whole = vec2f(
    lanes_max(lane, max(max(most_m.x, most_m.y), max(most_m.z, most_m.w))),
    lanes_max(lane, max(max(most_v.x, most_v.y), max(most_v.z, most_v.w))));
  let inverse = select(vec2f(0.0), 1.0 / whole, whole > vec2f(1e-37));
  if (lane == 0u) { scale[block] = whole; }
  for (var t = lane; t < 64u; t += LANES) {
    m[block * 64u + t] = word(m_codes(new_m[t] * inverse.x));
    v[block * 64u + t] = word(v_codes(new_v[t] * inverse.y));
  }
}
