// Part of row_lanes.wgsl and row_lanes_q.wgsl: puts the KU keys and values of an iteration on the stack (held_cpu.wgsl). Lane u of rows_held has the
// row of key u.
#for u in 0..KU
#for c in 0..C
    held[$(C*u+c)] = load_k(subgroupBroadcast(rows_held, $(u)u), kv_head, min($(c)u * LANES + lane, DE - 1u));
    held[$(C*KU+C*u+c)] = load_v(subgroupBroadcast(rows_held, $(u)u), kv_head, min($(c)u * LANES + lane, DE - 1u));
#end
#end
