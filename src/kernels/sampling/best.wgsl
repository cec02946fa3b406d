// The smallest token among the lanes where `taken`: exact, as ids are below 2^24. Where there is none, 16,000,000.
fn smallest_token(lane: u32, token: u32, taken: bool) -> u32 { return u32(-lanes_max(lane, select(-1.6e7, -f32(token), taken))); }
