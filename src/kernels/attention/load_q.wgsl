// Loads elements of q and dO for the backward kernels, from buffers or from staging textures (TEX).
#if TEX
fn load_q(row: u32, head: u32, e: u32) -> E { return textureLoad(q, vec2u(head * DE + e, row)); }
fn load_d_out(row: u32, head: u32, e: u32) -> E { return textureLoad(d_out, vec2u(head * DE + e, row)); }
#else
fn load_q(row: u32, head: u32, e: u32) -> E { return q[(row * HEADS + head) * DE + e]; }
fn load_d_out(row: u32, head: u32, e: u32) -> E { return d_out[(row * HEADS + head) * DE + e]; }
#endif
