// Stores eight f16 values to workgroup memory without bank conflicts. Drivers store such a vector as two halves of four values. Of sixteen threads,
// eight store the first half first and eight the second half first, so that they do not all access the same half of the banks. For vector e: its
// words, and where its halves go from `at` on, in the order in which they are stored. In this form, a driver sees that four values are aligned to 8
// bytes, and stores them at once.
fn late(e: u32) -> u32 { return e / 8u % 2u; }
fn in_turn(bits: vec4u, e: u32) -> vec4u { return select(bits, bits.zwxy, late(e) == 1u); }
fn halves(at: u32, e: u32) -> vec2u { return vec2u(at + late(e) * 4u, at + (1u - late(e)) * 4u); }
// Stores vector e in tile_1 or tile_2 of the including file, at at_1(e) or at_2(e).
#for t in 1..3
fn store_$(t)(e: u32, bits: vec4u) {
  let half = halves(at_$(t)(e), e);
  let words = in_turn(bits, e);
#for h in 0..2
#for q in 0..2
  let pair$(h)_$(q) = bitcast<vec2<f16>>(words[$(2*h+q)]);
  tile_$(t)[half[$(h)] + $(2*q)u] = pair$(h)_$(q).x;
  tile_$(t)[half[$(h)] + $(2*q+1)u] = pair$(h)_$(q).y;
#end
#end
}
#end
