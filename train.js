#!/usr/bin/env node
// `node train.js WORDS` is `node cli.js train WORDS`.
process.argv.splice(2, 0, 'train')
await import('./cli.js')
