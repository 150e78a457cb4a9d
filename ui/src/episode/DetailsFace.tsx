/** Everything of an episode that is no message: the task, the reward, times, what the judge was given. */

import type { ComponentChildren } from 'preact'

import type { Episode, Json } from '../data/types'
import { duration, laidOut, moment, number } from '../text/format'
import { term } from '../text/terms'
import { t } from '../text/translate'
import { Code } from './MessageCard'

export function DetailsFace({ episode }: { episode: Episode }) {
  const { row, task, reward, error, timings, metrics, judge_inputs } = episode
  return (
    <div class="details scroller" tabIndex={0} role="region" aria-label={t('details')}>
      {error !== null && (
        <Section title={t('error')}>
          <Code text={error} />
        </Section>
      )}
      {row.not_trained !== null && <p class="warn">{t('not_trained', { reason: term(row.not_trained) })}</p>}
      <Section title={t('task')}>
        <Values values={task} />
      </Section>
      {reward !== null && (
        <Section title={t('reward')}>
          <Values values={reward} />
        </Section>
      )}
      <Section title={t('timings')}>
        <Values values={timings} shown={(value) => duration(value as number | null)} />
      </Section>
      {Object.keys(metrics).length > 0 && (
        <Section title={t('metrics')}>
          <Values values={metrics} />
        </Section>
      )}
      <Section title={t('judge_inputs')}>
        <Code text={laidOut(judge_inputs)} />
      </Section>
      <p class="faint">
        {row.episode_id} · {t('recorded')} {moment(row.created_at)}
      </p>
    </div>
  )
}

function Section({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section>
      <h3>{title}</h3>
      {children}
    </section>
  )
}

function Values({ values, shown = plain }: { values: { [name: string]: Json }; shown?: (value: Json) => string }) {
  return (
    <dl class="values">
      {Object.entries(values).filter(([, value]) => !isEmpty(value)).map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value !== null && typeof value === 'object' ? <Code text={laidOut(value)} /> : shown(value)}</dd>
        </div>
      ))}
    </dl>
  )
}

/** Then a line of it says nothing. */
function isEmpty(value: Json): boolean {
  return value === '' || (typeof value === 'object' && Object.keys(value ?? {}).length === 0)
}

function plain(value: Json): string {
  if (typeof value === 'number') return number(value)
  return String(value)
}
