// Loads elements of k and v from buffers (F16: a cache in f16, four values per vec2u), from staging textures (TEX), or from a cache in textures (TEX,
// KV_FOLD). KV: the type of an element in a buffer.
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
