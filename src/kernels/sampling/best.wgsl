// The smallest token among the lanes where `taken`; 16,000,000 if there is none. Exact in float32, as ids are below 2^24.
fn smallest_token(lane: u32, token: u32, taken: bool) -> u32 { return u32(-lanes_max(lane, select(-1.6e7, -f32(token), taken))); }
