// Which of the tile's RB rows see the same keys, each up to its position: bit r is set if row r begins a segment, that is, does not continue what row
// r - 1 sees. The last row of a segment sees the most.
var<workgroup> begins: array<u32, $(RB)>;
var<workgroup> begun: vec2u;
fn segments(row0: u32, id: u32) -> vec2u {
  if (id < $(RB)u) {
    let row = min(row0 + id, p.rows - 1u);
    let here = info[row];
    let before = info[max(row, 1u) - 1u];
    let goes_on = id > 0u && takes(row0 + id) && takes(row0 + id - 1u) && all(here.xyz == before.xyz) && here.w > before.w;
    begins[id] = select(1u, 0u, goes_on);
  }
  workgroupBarrier();
  if (id == 0u) {
    var found = vec2u();
    for (var r = 0u; r < min($(RB)u, p.rows - row0 + 1u); r++) {
      if (r < 32u) { found.x |= begins[r] << r; } else { found.y |= begins[r] << (r - 32u); }
    }
    begun = found;
  }
  return workgroupUniformLoad(&begun);
}
// The first row of the first segment of `rest`, and `rest` without that segment.
fn first_of(rest: vec2u) -> u32 {
  return select(select($(RB)u, 32u + firstTrailingBit(rest.y), rest.y != 0u), firstTrailingBit(rest.x), rest.x != 0u);
}
fn behind(rest: vec2u) -> vec2u {
  return select(vec2u(0u, rest.y & (rest.y - 1u)), vec2u(rest.x & (rest.x - 1u), rest.y), rest.x != 0u);
}
