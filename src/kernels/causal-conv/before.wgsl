// The inputs of the channels from 4c on that stand j rows before row t in its sequence; 0 before its beginning. `place` is place_of(t).
#if CACHE
// `runs`: of each row its sequence's slot, the first row of that sequence in this pass, how many it has, and 1 where they go on from the slot's inputs.
fn place_of(t: u32) -> vec4u { return runs[t]; }
fn before(t: u32, place: vec4u, j: u32, c: u32) -> vec4f {
  let own = t - place.y;
  if (own >= j) { return x[(t - j) * p.channels + c]; }
  if (place.w == 0u) { return vec4f(); }
  return inputs[(place.x * $(TAPS-1)u + $(TAPS-1)u + own - j) * p.channels + c];
}
#else
// info[t].z: the first row of the sequence (see attention/common.wgsl).
fn place_of(t: u32) -> vec4u { return info[t]; }
fn before(t: u32, place: vec4u, j: u32, c: u32) -> vec4f {
  if (t - place.z < j) { return vec4f(); }
  return x[(t - j) * p.channels + c];
}
#endif

// What the convolution gives before SiLU; the newest input is added first.
fn convolved(t: u32, c: u32) -> vec4f {
  let place = place_of(t);
  let taps = taps_of(c);
  var sum = vec4f();
#for j in 0..TAPS
  sum = fma(taps[$(j)], before(t, place, $(j)u, c), sum);
#end
  return sum;
}
