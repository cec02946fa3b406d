  // Where element e lies, a pair (i, i + h) of a head of a row of `per_row` pairs, and the angle that it is turned by.
  let row = e / per_row;
  if (row >= p.rows) { return; }
  let head = (e - row * per_row) / h;
  let i = e - row * per_row - head * h;
#if VEC4
  let turn_at = 2u * (position_of(row) * h + i);
  let turns_0 = table[turn_at];
  let turns_1 = table[turn_at + 1u];
  let cosine = vec4f(turns_0.xz, turns_1.xz);
  let sine = vec4f(turns_0.yw, turns_1.yw);
#else
  let turn = table[position_of(row) * h + i];
  let cosine = turn.x;
  let sine = turn.y;
#endif
