  // Where element e lies, a pair (lower, lower + apart) of a head, where a row has `per_row` pairs and a head h, and the angle by which it is
  // rotated. PARTIAL: the first `turned` pairs of a head are those of its first 2 turned channels; the others, of the channels after these, are not
  // rotated.
  let row = e / per_row;
  if (row >= p.rows) { return; }
  let head = (e - row * per_row) / h;
  let i = e - row * per_row - head * h;
#if PARTIAL
  let of_head = p.turned / $(1+3*VEC4)u;
  let turns = i < of_head;
  let angle = position_of(row) * of_head + min(i, of_head - 1u);
  let lower = select(i + of_head, i, turns);
  let apart = select(h - of_head, of_head, turns);
#else
  let angle = position_of(row) * h + i;
  let lower = i;
  let apart = h;
#endif
  let angles = angles_at($(1+VEC4)u * angle);
  var cosine = angles.cosine;
  var sine = angles.sine;
#if PARTIAL
  if (!turns) {
    cosine = E(1.0);
    sine = E();
  }
#endif
