/** docs/metrics.md, made from the table of metrics so that the two cannot drift apart. */
import { METRICS } from './metrics-table.ts'

/** The text of docs/metrics.md. Made again by `npx vitest run test/monitor/glossary.test.ts -u`. */
export function metricsGlossary(): string {
  const lines = [
    '# Metrics',
    '',
    '<!-- Made from METRICS in src/monitor/metrics-table.ts: change it there, then run `npx vitest run test/monitor/glossary.test.ts -u`. -->',
    '',
    'Each row of `outputs/<run_name>/metrics.jsonl` is one flat JSON object with `step`, `time` (seconds since 1970) and the names below.',
    '',
    '- Steps count from 1; row 0 is the evaluation before training.',
    '- A value that was not finite is null, and so is a mean over nothing, such as `reward` where every rollout failed. Other metrics without a value',
    '  are left out: evaluations are only in the rows of steps that were evaluated, those of the loss and `optim/grad_norm` where something was',
    '  trained on, and a missing `stop_condition/<name>` means 0. `pandas.read_json(path, lines=True)` turns both null and missing values into NaN.',
    '- Names in angle brackets stand for any text.',
    '',
    'Terms:',
    '',
    '- `ratio` is exp(logp of the trainer - logp of the sampler), both over the full vocabulary at the sampling temperature.',
    '- A *loss token* is a token that the model sampled, in a rollout that is trained on.',
    '- A *group* is the rollouts of one task.',
    '',
    'What to watch:',
    '',
    '- **reward** should rise.',
    '- **solved_some** says how much of a batch can teach anything.',
    '- **is_truncated/mean** should be under 0.1; otherwise answers are cut off before they can earn a reward.',
    '- **entropy/all/mean** should not fall to 0, **mismatch_kl/all/mean** should stay small and flat, and **optim/grad_norm** should show no spikes.',
    '- The loss says little: it is near 0 from the first step to the last (in `sft` it should fall).',
  ]
  const groups = Map.groupBy(Object.entries(METRICS), ([, info]) => info.group)
  for (const [group, entries] of groups) {
    lines.push('', `## ${group}`, '', '| name | formula | unit | healthy | in TRL |', '|---|---|---|---|---|')
    for (const [name, info] of entries) {
      const cells = [`\`${name}\``, info.formula, info.unit, info.healthy, info.trl ?? ''].map(cell)
      lines.push(`| ${cells.join(' | ')} |`)
    }
  }
  return `${lines.join('\n')}\n`
}

/** A text as a cell of a Markdown table: no bare `|`, and no <name> outside of code, which would be taken for HTML and vanish. */
function cell(text: string): string {
  return text
    .split('`')
    .map((part, i) => (i % 2 === 0 ? part.replace(/<\w+>/g, '`$&`') : part))
    .join('`')
    .replaceAll('|', '\\|')
}
