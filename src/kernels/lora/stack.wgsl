// Adapters of several places in one low-rank product: the first `own` of the rank belong to place 0 (the policy's adapter), then `width` to each
// place from 2 on. Nothing belongs to place 1, that of rows without an adapter.
fn place_of(r: u32) -> u32 { return select(2u + (r - p.own) / max(p.width, 1u), 0u, r < p.own); }
