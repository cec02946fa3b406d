// count_of(row): if `row` is the first row of a sequence in the pass, the rows row .. row + count - 1 are that sequence, in order; count is 0 for
// other rows.
#if CACHE
// `runs`, for each row: slot of its sequence, the sequence's first row in this pass, its number of rows in this pass, and 1 if they continue from the
// slot's state.
fn count_of(row: u32) -> u32 { return select(0u, runs[row].z, runs[row].y == row); }
#else
// A row's sequence ends before key_end[row], where the next one begins.
fn count_of(row: u32) -> u32 { return select(0u, key_end[row] - row, row == 0u || key_end[max(row, 1u) - 1u] == row); }
#endif
