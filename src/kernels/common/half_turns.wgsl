// Eight values in f16 on their way into workgroup memory. Drivers make two stores of such a vector, four values each: of sixteen threads eight store the first half first and eight
// the second, so that they do not all meet in the same half of the banks. Vector e's words, and where from `at` on the halves go that they are of, in the order in which they are
// stored: in this form a driver sees that four values are 8 bytes aligned, and stores them at once.
fn late(e: u32) -> u32 { return e / 8u % 2u; }
fn in_turn(bits: vec4u, e: u32) -> vec4u { return select(bits, bits.zwxy, late(e) == 1u); }
fn halves(at: u32, e: u32) -> vec2u { return vec2u(at + late(e) * 4u, at + (1u - late(e)) * 4u); }
