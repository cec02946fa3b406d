// Elements of a head: VEC4 packs four values (head width a multiple of 4), else one; and their products, added to s in order.
#if VEC4
alias E = vec4f;
fn dot_add(a: E, b: E, s: f32) -> f32 { return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, s)))); }
#else
alias E = f32;
fn dot_add(a: E, b: E, s: f32) -> f32 { return fma(a, b, s); }
#endif
