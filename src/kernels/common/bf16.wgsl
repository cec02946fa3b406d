// Eight values of a weight's row. bf16 widens exactly: its bits are the upper half of a float32.
struct W8 { lo: vec4f, hi: vec4f }

fn widen_lo(u: vec4u) -> vec4f { return vec4f(bitcast<f32>(u.x << 16u), bitcast<f32>(u.x & 0xffff0000u), bitcast<f32>(u.y << 16u), bitcast<f32>(u.y & 0xffff0000u)); }
fn widen_hi(u: vec4u) -> vec4f { return vec4f(bitcast<f32>(u.z << 16u), bitcast<f32>(u.z & 0xffff0000u), bitcast<f32>(u.w << 16u), bitcast<f32>(u.w & 0xffff0000u)); }
