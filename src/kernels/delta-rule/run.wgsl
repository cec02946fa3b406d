// The rows row .. row + count - 1 of a pass are a sequence's, in order, where `row` is the first of them; count is 0 for other rows.
#if CACHE
// `runs`: of each row its sequence's slot, the first row of that sequence in this pass, how many it has, and 1 where they go on from the slot's state.
fn count_of(row: u32) -> u32 { return select(0u, runs[row].z, runs[row].y == row); }
#else
// A row's sequence ends before key_end[row], where the next one begins.
fn count_of(row: u32) -> u32 { return select(0u, key_end[row] - row, row == 0u || key_end[max(row, 1u) - 1u] == row); }
#endif
