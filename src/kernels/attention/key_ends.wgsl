// Only rows row .. end_of(row) - 1 of the batch may see key row `row`.
#if WINDOW
// See key_places.wgsl.
@group(0) @binding(3) var<storage, read> places: array<vec2u>;
fn end_of(row: u32) -> u32 { return places[row].x; }
#else
@group(0) @binding(3) var<storage, read> key_end: array<u32>;
fn end_of(row: u32) -> u32 { return key_end[row]; }
#endif
