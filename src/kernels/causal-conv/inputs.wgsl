// The values to convolve: channel c of row t, or four channels if indices count groups of four (`Value`). x (rows, channels). GATED: x (rows, 3
// channels) has B, C and the values of all channels one after the other, and B times the values is convolved.
@group(0) @binding(0) var<storage, read> x: array<Value>;
fn input_of(t: u32, c: u32) -> Value {
#if GATED
  let at = 3u * t * p.channels + c;
  return x[at] * x[at + 2u * p.channels];
#else
  return x[t * p.channels + c];
#endif
}
