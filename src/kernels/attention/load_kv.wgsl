// Elements of k and v, from buffers, staged in textures or a cache in some (TEX, KV_FOLD), or from a cache of f16 (F16), four to a vec2u.
// KV is how a buffer has an element.
#if F16
alias KV = vec2u;
#else
alias KV = E;
#endif
#if TEX
#if KV_FOLD
#include "kv_place.wgsl"
#else
fn kv_place(row: u32, e: u32) -> vec2u { return vec2u(e, row); }
#endif
fn load_k(row: u32, head: u32, e: u32) -> E { return textureLoad(k, kv_place(row, head * DE + e)); }
fn load_v(row: u32, head: u32, e: u32) -> E { return textureLoad(v, kv_place(row, head * DE + e)); }
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
