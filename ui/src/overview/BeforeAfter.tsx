/** Success before and after, with intervals: the run's answer in one look. */

import type { Measured, Outcome, Run } from '../data/types'
import { number, rate } from '../text/format'
import { t } from '../text/translate'

export function BeforeAfter({ run, outcome }: { run: Run; outcome: Outcome }) {
  const { before, after } = outcome
  if (before === null) return <InTraining run={run} />
  return (
    <section class="answer">
      <h2>{t('held_out_success')}</h2>
      <p class="answer-line" data-answer>
        {rate(before.success)}
        {after && <> → {rate(after.success)}</>}
      </p>
      <div class="intervals">
        <Interval name={t('before_step', { n: before.step })} measured={before} />
        {after && <Interval name={t('after_step', { n: after.step })} measured={after} />}
      </div>
      <p class="faint">{t('measured_on', { tasks: before.tasks, episodes: before.episodes, n: outcome.measurements })}</p>
      <p class="faint">{said(outcome, before, after)}</p>
    </section>
  )
}

/** What is to be thought of it before it is believed. */
function said({ measurements }: Outcome, before: Measured, after: Measured | null): string {
  if (after === null) return t('only_before')
  if (after.success <= before.success) return t('not_better')
  if (after.low <= before.high) return t('overlap')
  return measurements > 2 ? t('best_kept', { n: measurements }) : ''
}

function Interval({ name, measured }: { name: string; measured: Measured }) {
  const { success, low, high, reward } = measured
  const interval = t('interval_of', { low: rate(low), high: rate(high) })
  return (
    <div class="interval" title={t('interval_hint')}>
      <span>{name}</span>
      <svg viewBox="0 0 100 12" preserveAspectRatio="none" role="img" aria-label={`${name}: ${rate(success)}, ${interval}`}>
        <rect class="interval-paper" x="0" y="4" width="100" height="4" />
        <rect class="interval-range" x={100 * low} y="3" width={Math.max(0.5, 100 * (high - low))} height="6" />
        <rect class="interval-mean" x={Math.max(0, Math.min(99.2, 100 * success - 0.4))} y="0" width="0.8" height="12" />
      </svg>
      <span class="number">
        <b>{rate(success)}</b> <span class="faint">{interval}</span>
      </span>
      <span class="faint number">
        {t('reward')} {number(reward)}
      </span>
    </div>
  )
}

/** Where nothing is held out, the training's own rate. */
function InTraining({ run }: { run: Run }) {
  const rates = run.steps.filter(({ split, episodes }) => split === 'train' && episodes > 0).map(({ successes, episodes }) => successes / episodes)
  if (rates.length === 0) return null
  return (
    <section class="answer">
      <h2>{t('training_success')}</h2>
      <p class="answer-line" data-answer>
        {rate(rates[0]!)}
        {rates.length > 1 && <> → {rate(rates.at(-1)!)}</>}
      </p>
    </section>
  )
}
