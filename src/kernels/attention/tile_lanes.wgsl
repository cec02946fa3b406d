  // The thread's four rows of a tile, 4 rows4 .. + 3, and its first key or vector, kx. 32 neighbouring threads are 4 (rows) x 8 (keys). Even threads
  // read the same keys and vectors as the odd ones beside them, and threads two apart read the same rows, so NVIDIA's GPUs serve half a subgroup at
  // once (matmul/tile_turns.wgsl).
  let kx = id / 2u % 8u + id / 32u % $(KX/8)u * 8u;
  let rows4 = id % 2u + id / 16u % 2u * 2u + id / $(4*KX)u * 4u;
#for s in 0..LEFTS
  let left_$(s) = left_place(row0, head0, id / $(DEPTH)u + $(s*THREADS/DEPTH)u) + id % $(DEPTH)u;
#end
