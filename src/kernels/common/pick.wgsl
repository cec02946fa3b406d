// The value that belongs to member s of a group: a, b or c.
fn pick(s: u32, a: u32, b: u32, c: u32) -> u32 { return select(select(a, b, s == 1u), c, s == 2u); }
