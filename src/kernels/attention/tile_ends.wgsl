  // ends[r]: end_of the RT key rows of a tile from row0 on, 0 if there is no row. `end`: the largest of them.
  for (var r = id; r < $(RT)u; r += $(THREADS)u) { ends[r] = select(0u, end_of(min(row0 + r, p.rows - 1u)), row0 + r < p.rows); }
  workgroupBarrier();
  if (id == 0u) {
    var far = 0u;
    for (var r = 0u; r < min($(RT)u, p.rows - row0); r++) { far = max(far, ends[r]); }
    farthest = far;
  }
  let end = workgroupUniformLoad(&farthest);
