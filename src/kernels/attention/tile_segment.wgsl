    // A turn of the loop over segments, which begins with row `begin` of the tile: how its keys are found, which is the first that one of its rows sees (they follow each
    // other), how many the last row sees, and each of the thread's rows
    // that belong to it; 0 for the others.
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
