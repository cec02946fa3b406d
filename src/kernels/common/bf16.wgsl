// Widens eight values of a weight's row, exactly: bf16, whose bits are the upper half of a float32, or f16 (W_F16: Weight.f16). Also rounds and packs
// them.
struct W8 { lo: vec4f, hi: vec4f }

#if W_F16
fn widen_lo(u: vec4u) -> vec4f { return vec4f(unpack2x16float(u.x), unpack2x16float(u.y)); }
fn widen_hi(u: vec4u) -> vec4f { return vec4f(unpack2x16float(u.z), unpack2x16float(u.w)); }
#else
fn widen_lo(u: vec4u) -> vec4f { return vec4f(bitcast<f32>(u.x << 16u), bitcast<f32>(u.x & 0xffff0000u), bitcast<f32>(u.y << 16u), bitcast<f32>(u.y & 0xffff0000u)); }
fn widen_hi(u: vec4u) -> vec4f { return vec4f(bitcast<f32>(u.z << 16u), bitcast<f32>(u.z & 0xffff0000u), bitcast<f32>(u.w << 16u), bitcast<f32>(u.w & 0xffff0000u)); }
#endif

// Rounds to the nearest bf16, ties to even, in the upper half of each word. A NaN stays a NaN.
fn round_bf16(values: vec4f) -> vec4u {
  let bits = bitcast<vec4u>(values);
  let nan = (bits & vec4u(0x7fffffffu)) > vec4u(0x7f800000u);
  return select(bits + 0x7fffu + ((bits >> vec4u(16u)) & vec4u(1u)), bits | vec4u(0x400000u), nan);
}
// Packs eight values, given as these bits, two to a word.
fn pack_bf16(lo: vec4u, hi: vec4u) -> vec4u { return (vec4u(lo.xz, hi.xz) >> vec4u(16u)) | (vec4u(lo.yw, hi.yw) & vec4u(0xffff0000u)); }
// Packs them in the format of the weight, which is f16 with W_F16. A value that training has driven out of f16's range becomes infinite, so that it
// is noticed.
fn pack_weight(lo: vec4u, hi: vec4u) -> vec4u {
#if W_F16
  let a = vec4<f16>(bitcast<vec4f>(lo & vec4u(0xffff0000u)));
  let b = vec4<f16>(bitcast<vec4f>(hi & vec4u(0xffff0000u)));
  return vec4u(bitcast<u32>(a.xy), bitcast<u32>(a.zw), bitcast<u32>(b.xy), bitcast<u32>(b.zw));
#else
  return pack_bf16(lo, hi);
#endif
}
