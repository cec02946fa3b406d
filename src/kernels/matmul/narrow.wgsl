// Values as the matrix units take them: float32 rounded to f16 and clamped to its range; eight bf16 of a vec4u widened, the even ones and the odd ones.
fn narrow(v: vec4f) -> vec4<f16> { return vec4<f16>(clamp(v, vec4f(-65504.0), vec4f(65504.0))); }
fn low(u: vec4u) -> vec4f { return bitcast<vec4f>(u << vec4u(16u)); }
fn high(u: vec4u) -> vec4f { return bitcast<vec4f>(u & vec4u(0xffff0000u)); }
