// The input of channel c that stands j rows before row t in its sequence; 0 before its beginning.
#if CACHE
// `runs`: of each row its sequence's slot, the first row of that sequence in this pass, how many it has, and 1 where they go on from the slot's inputs.
fn before(t: u32, j: u32, c: u32) -> f32 {
  let run = runs[t];
  let own = t - run.y;
  if (own >= j) { return x[(t - j) * p.channels + c]; }
  if (run.w == 0u) { return 0.0; }
  return inputs[(run.x * $(TAPS-1)u + $(TAPS-1)u + own - j) * p.channels + c];
}
#else
// info[t].z: the first row of the sequence (see attention/common.wgsl).
fn before(t: u32, j: u32, c: u32) -> f32 {
  if (t - info[t].z < j) { return 0.0; }
  return x[(t - j) * p.channels + c];
}
#endif

// What the convolution gives before SiLU; the newest input is added first.
fn convolved(t: u32, c: u32) -> f32 {
  var sum = 0.0;
  for (var j = 0u; j < TAPS; j++) { sum = fma(weight[c * TAPS + TAPS - 1u - j], before(t, j, c), sum); }
  return sum;
}
