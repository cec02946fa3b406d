// The type of o: float32, or with O_F16 f16, rounded as in matmul/units_stage.wgsl, for a product on matrix units.
#if O_F16
#include "narrow.wgsl"
#if VEC4
alias O = vec2u;
fn out_of(v: vec4f) -> O { return narrow(v); }
#else
alias O = f16;
fn out_of(v: f32) -> O { return narrow_one(v); }
#endif
#else
alias O = E;
fn out_of(v: E) -> O { return v; }
#endif
