// The weights of the four channels from 4c on, by tap; tap 0 belongs to the newest input. FOUR: there are four taps, so those of a channel are one
// vector.
#if FOUR
@group(0) @binding(1) var<storage, read> weight: array<vec4f>;
#else
@group(0) @binding(1) var<storage, read> weight: array<f32>;
#endif
fn taps_of(c: u32) -> array<vec4f, TAPS> {
  var taps: array<vec4f, TAPS>;
#if FOUR
#for i in 0..4
  let own$(i) = weight[4u * c + $(i)u];
#end
#for j in 0..TAPS
  taps[$(j)] = vec4f(own0[$(TAPS-1-j)], own1[$(TAPS-1-j)], own2[$(TAPS-1-j)], own3[$(TAPS-1-j)]);
#end
#else
  let at = 4u * c * TAPS;
#for j in 0..TAPS
  taps[$(j)] = vec4f(weight[at + $(TAPS-1-j)u], weight[at + $(2*TAPS-1-j)u], weight[at + $(3*TAPS-1-j)u], weight[at + $(4*TAPS-1-j)u]);
#end
#endif
  return taps;
}
