// Part of row_lanes.wgsl (SHARED): a workgroup's block of (row, head) pairs, and a lane's pair (`blocksOf` in shared.ts).
  let place = place_of(group, 1u, KV_HEADS);
  let block = well_laid(place.x, lane);
  if (block >= p.rows) { return; }
  let at = info[block];
  if (at.w == 0u) { return; }
  let keys = at.y;
  let taken = lane < at.w;
  let pair = at.z + min(lane, at.w - 1u);
  let index = pair / GROUP;
  let row = info[p.rows + index / 4u][index % 4u];
  let q_row = row;
  let kv_head = place.y;
  let head0 = kv_head * GROUP + pair % GROUP;
