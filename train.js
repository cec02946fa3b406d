#!/usr/bin/env node
// `node train.js WORDS` is short for `node cli.js train WORDS`.
process.argv.splice(2, 0, 'train')
await import('./cli.js')
