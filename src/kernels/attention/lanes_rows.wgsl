  // The first row and head of a workgroup (LANES rows, HG heads), and the row of a lane.
  let place = place_of(group, LANES, $(HEADS/HG)u);
  let row0 = well_laid(place.x, lane) * LANES;
  if (row0 >= p.rows) { return; }
  let head0 = place.y * $(HG)u;
  let kv_head = head0 / GROUP;
  let row = row0 + lane;
  let own = info[min(row, p.rows - 1u)];
  let taken = takes(row);
