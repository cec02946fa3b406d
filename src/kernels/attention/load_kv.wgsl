// Elements of k and v, from buffers, staged in textures (TEX), or from a cache of f16 (F16), four to a vec2u.
// KV is how a buffer has an element.
#if F16
alias KV = vec2u;
#else
alias KV = E;
#endif
#if TEX
fn load_k(row: u32, head: u32, e: u32) -> E { return textureLoad(k, vec2u(head * DE + e, row)); }
fn load_v(row: u32, head: u32, e: u32) -> E { return textureLoad(v, vec2u(head * DE + e, row)); }
#else
#if F16
fn widen(w: vec2u) -> E { return vec4f(unpack2x16float(w.x), unpack2x16float(w.y)); }
fn load_k(row: u32, head: u32, e: u32) -> E { return widen(k[(row * KV_HEADS + head) * DE + e]); }
fn load_v(row: u32, head: u32, e: u32) -> E { return widen(v[(row * KV_HEADS + head) * DE + e]); }
#else
fn load_k(row: u32, head: u32, e: u32) -> E { return k[(row * KV_HEADS + head) * DE + e]; }
fn load_v(row: u32, head: u32, e: u32) -> E { return v[(row * KV_HEADS + head) * DE + e]; }
#endif
#endif
