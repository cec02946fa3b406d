    // One iteration of the loop over segments (tile_segments.wgsl), for the segment that begins with row `begin` of the tile: `at`, the info of its
    // first row; from_key, the first key that any of its rows sees; `keys`, how many its last row sees, which sees the most; and mine[r], how many
    // the thread's row r sees, 0 if it belongs to another segment.
    if (!takes(row0 + begin)) { continue; }
    let end = first_of(behind(rest));
    let at = info[row0 + begin];
    let keys = info[row0 + end - 1u].w + 1u;
#if WINDOW
    let from_key = lowest(at.w);
#else
    let from_key = 0u;
#endif
    var mine = vec4u();
#for r in 0..4
    mine[$(r)] = select(0u, seen[$(r)], in_tile_$(r) >= begin && in_tile_$(r) < end);
#end
