// Adapters of several places in one low-rank product: the first `own` of the rank are place 0's (the policy's), then come `width` for each place from 2 on.
// Nothing is place 1's: rows without an adapter.
fn place_of(r: u32) -> u32 { return select(2u + (r - p.own) / max(p.width, 1u), 0u, r < p.own); }
