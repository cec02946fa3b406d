  // For a tile of RB rows and HG heads (tile_forward.wgsl, tile_backward_q.wgsl): its first row, last tiles first; the thread's four rows of the
  // products, 4 rows4 .. + 3; where each is (row_r of the batch, in_tile_r of the tile, head place_r of all rows' heads); and how many keys it sees,
  // 0 if there is no row (WINDOW: from key low[r] on).
  let tiles = (p.rows + $(RB-1)u) / $(RB)u;
  let tile = group.x + group.z * 65535u;
  if (tile >= tiles) { return; }
  let row0 = (tiles - 1u - tile) * $(RB)u;
  let head0 = group.y * $(HG)u;
  let head = head0 / GROUP;
#include "tile_lanes.wgsl"
  var seen = vec4u();
#if WINDOW
  var low = vec4u();
#endif
#for r in 0..4
  let in_tile_$(r) = (4u * rows4 + $(r)u) / $(HG)u;
  let row_$(r) = row0 + in_tile_$(r);
  let place_$(r) = row_$(r) * HEADS + head0 + (4u * rows4 + $(r)u) % $(HG)u;
  if (in_tile_$(r) < $(RB)u && takes(row_$(r))) { seen[$(r)] = info[row_$(r)].w + 1u; }
#if WINDOW
  low[$(r)] = lowest(max(seen[$(r)], 1u) - 1u);
#endif
#end
