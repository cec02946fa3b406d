  // Opens the loop over groups of rows that see the same keys, each up to its position: first the group of the first lane, then that of the first
  // lane left, and so on. Lanes of other groups take part with weights of 0, which changes none of their bits. A lane sees the keys before `limit`,
  // its group those before `keys`; with WINDOW from `low_own` on, and the group from `low` on. The group's tiles begin at key `j_first`.
  var left = taken;
  for (var next = lanes_max(lane, select(-1.0, f32(LANES - 1u - lane), left)); next >= 0.0; next = lanes_max(lane, select(-1.0, f32(LANES - 1u - lane), left))) {
    let first_lane = LANES - 1u - u32(next);
    let at = vec4u(subgroupShuffle(own.x, first_lane), subgroupShuffle(own.y, first_lane), subgroupShuffle(own.z, first_lane), 0u);
    let mine = left && all(own.xyz == at.xyz);
    left = left && !mine;
    let limit = select(0u, own.w + 1u, mine);
    let keys = u32(lanes_max(lane, f32(limit)));
#if WINDOW
    let low_own = select(0xffffffffu, lowest(own.w), mine);
    let low = keys - u32(lanes_max(lane, select(0.0, f32(keys - min(low_own, keys)), mine)));
    let j_first = low / LANES * LANES;
#else
    let j_first = 0u;
#endif
