// Loads x of a forward product from a texture or its buffer: where a row begins, and vec4 number `part` of it.
#if X_TEX
fn x_row(row: u32) -> u32 { return row - p.row0; }
fn x_load(row: u32, part: u32) -> vec4f { return textureLoad(x, vec2u(part, row)); }
#else
fn x_row(row: u32) -> u32 { return row * (p.k / 4u); }
fn x_load(row: u32, part: u32) -> vec4f { return x[row + part]; }
#endif
