// Values as the matrix units take them: float32 rounded to f16 and clamped to its range; eight bf16 of a vec4u widened, the even ones and the odd ones.
// A NaN, told from its bits (see optimizer/norm.wgsl), stays one: clamped it would be an end of the range, and nobody would learn of it.
fn narrow(v: vec4f) -> vec4<f16> {
  let number = (bitcast<vec4u>(v) & vec4u(0x7fffffffu)) <= vec4u(0x7f800000u);
  return vec4<f16>(select(v, clamp(v, vec4f(-65504.0), vec4f(65504.0)), number));
}
fn low(u: vec4u) -> vec4f { return bitcast<vec4f>(u << vec4u(16u)); }
fn high(u: vec4u) -> vec4f { return bitcast<vec4f>(u & vec4u(0xffff0000u)); }
