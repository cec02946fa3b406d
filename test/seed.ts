/**
 * The seed of the tests' random inputs. In CI it is fixed, so that the outcome does not depend on luck. In every run by hand it is new, so that rare
 * failures are found by people who can fix them. DAWN_RL_TEST_SEED repeats a failing run.
 */
export const seed = Number(process.env.DAWN_RL_TEST_SEED ?? (process.env.CI ? 20_261_121 : Date.now() % 1_000_000))
/** To be included in failure messages. */
export const seedWords = `DAWN_RL_TEST_SEED=${seed}`
