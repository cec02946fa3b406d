// Converts to f16, rounded and clamped to its range. A NaN, recognised by its bits (see optimizer/norm.wgsl), stays a NaN: clamping would turn it
// into an end of the range, and hide it.
fn narrow(v: vec4f) -> vec2u {
  let number = (bitcast<vec4u>(v) & vec4u(0x7fffffffu)) <= vec4u(0x7f800000u);
  let f = vec4<f16>(select(v, clamp(v, vec4f(-65504.0), vec4f(65504.0)), number));
  return vec2u(bitcast<u32>(f.xy), bitcast<u32>(f.zw));
}
fn narrow_one(v: f32) -> f16 { return bitcast<vec2<f16>>(narrow(vec4f(v)).x).x; }
