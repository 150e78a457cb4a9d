/** The curves of the run on show, with other runs laid over it. Grows while the run goes on. */

import { useMemo } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import { Tabs } from '../common/Tabs'
import type { Run, RunInfo, RunMetrics } from '../data/types'
import { dark } from '../state/preferences'
import { go, usePlace } from '../state/place'
import type { Resource } from '../state/resource'
import { useSource } from '../state/source'
import { useStore } from '../state/store'
import { duration, integer, number } from '../text/format'
import { t } from '../text/translate'
import { Chart, Swatch } from './Chart'
import { CHARTS, curves } from './charts'
import { colourOf } from './palette'

interface Props {
  metrics: Resource<RunMetrics[]>
  run: Run | null
  runs: RunInfo[]
}

export function Dashboard({ metrics, run, runs }: Props) {
  const { axis } = usePlace()
  const report = useSource().reportAddress(run?.run ?? '', [])
  const isDark = useStore(dark)
  const names = useMemo(() => (metrics.data ?? []).map((item) => nameOf(item.run, runs)), [metrics.data, runs])
  const charts = useMemo(
    () => CHARTS.map((kind) => ({ kind, all: curves(kind, metrics.data ?? [], run, axis) })),
    [metrics.data, run, axis],
  )
  return (
    <section class="pane dashboard" aria-label={t('dashboard')}>
      <header class="dashboard-heading">
        <Tabs
          label={t('step')}
          value={axis}
          tabs={[
            ['step', t('by_step')],
            ['time', t('by_time')],
          ]}
          onChange={(value) => go({ axis: value }, { replace: true })}
        />
        <ul class="values-line">
          {names.map((name, index) => (
            <li key={name}>
              <Swatch colour={colourOf(index, isDark)} dashed={false} /> {name}
            </li>
          ))}
        </ul>
        {metrics.data && <Latest lines={metrics.data[0]} />}
        {report && (
          <a class="button" href={report} download title={t('export_curves')}>
            {t('export')}
          </a>
        )}
      </header>
      {metrics.error ? (
        <Failure error={metrics.error} again={metrics.again} />
      ) : !metrics.data ? (
        <Loading />
      ) : metrics.data.every(({ lines }) => lines.length === 0) ? (
        <Empty title={t('no_metrics')} hint={t('no_metrics_hint')} />
      ) : (
        <div class="charts scroller" tabIndex={0} role="region" aria-label={t('dashboard')}>
          {charts.map(({ kind, all }) => (
            <Chart key={kind.key} kind={kind} all={all} axis={axis} names={names} />
          ))}
        </div>
      )}
    </section>
  )
}

function Latest({ lines }: { lines: RunMetrics | undefined }) {
  const last = lines?.lines.findLast((line) => line.kind === 'train')
  if (!last) return null
  return (
    <p class="faint latest" aria-live="polite">
      {t('step')} <b>{integer(last.step)}</b> · {t('reward')} <b>{number(last.metrics['reward/mean'])}</b> ·{' '}
      <span title={t('at_work_hint')}>{t('at_work')}</span> <b>{duration(last.elapsed_s)}</b>
    </p>
  )
}

/** The experiment where it tells runs apart, with the run's time where it does not. */
function nameOf(run: string, runs: RunInfo[]): string {
  const info = runs.find((item) => item.run === run)
  if (!info) return run
  const alone = runs.filter((item) => item.experiment === info.experiment).length === 1
  return alone ? info.experiment : `${info.experiment} ${info.name}`
}
