/**
 * Imported by test files in which kernels compute for longer than they take to compile (real models, thousands of tokens): a software adapter compiles them
 * with LLVM's optimisations, as in a run, though scripts/common.sh (`quick_shaders`) turns these off for tests. Processes that the file starts too.
 */
process.env.GALLIVM_PERF = ''
