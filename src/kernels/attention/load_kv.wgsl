// Elements of k and v, from buffers or staged in textures (TEX).
#if TEX
fn load_k(row: u32, head: u32, e: u32) -> E { return textureLoad(k, vec2u(head * DE + e, row)); }
fn load_v(row: u32, head: u32, e: u32) -> E { return textureLoad(v, vec2u(head * DE + e, row)); }
#else
fn load_k(row: u32, head: u32, e: u32) -> E { return k[(row * KV_HEADS + head) * DE + e]; }
fn load_v(row: u32, head: u32, e: u32) -> E { return v[(row * KV_HEADS + head) * DE + e]; }
#endif
