/**
 * Where the tests' random inputs come from: fresh in every run by hand, so that odd cases are found by the people who can mend them; the
 * same ones in CI, so that what lands does not depend on luck. DAWN_RL_TEST_SEED brings a failing run's back.
 */
export const seed = Number(process.env.DAWN_RL_TEST_SEED ?? (process.env.CI ? 20_261_121 : Date.now() % 1_000_000))
/** For the words of a failure. */
export const seedWords = `DAWN_RL_TEST_SEED=${seed}`
