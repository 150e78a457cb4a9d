/** What a run came to: the page that a run opens with. */

import { useEffect, useMemo } from 'preact/hooks'

import { Empty, Failure, Loading } from '../common/Notice'
import { Chart } from '../dashboard/Chart'
import { curves, overview } from '../dashboard/charts'
import type { Metric, Outcome, Run, RunMetrics } from '../data/types'
import { language } from '../state/preferences'
import { useResource, useSame, type Resource } from '../state/resource'
import { useSource } from '../state/source'
import { useStore } from '../state/store'
import { duration, integer } from '../text/format'
import { t } from '../text/translate'
import { BeforeAfter } from './BeforeAfter'
import { Highlights } from './Highlights'
import { TokenAccount } from './TokenAccount'
import { Warnings } from './Warnings'

const SHOWN = ['success', 'reward']

interface Props {
  run: Run
  metrics: Resource<RunMetrics[]>
  catalogue: Metric[]
  /** Grows when something was written to the run's episodes. */
  written: number
}

export function Overview({ run, metrics, catalogue, written }: Props) {
  const source = useSource()
  const outcome = useSame(useResource(`outcome ${run.run}`, () => source.outcome(run.run)))
  const known = metrics.data?.[0]?.lines.length ?? 0
  useEffect(() => {
    if (written > 0) outcome.again()
  }, [written, known])
  return (
    <section class="pane overview scroller" tabIndex={0} aria-label={t('overview')}>
      {outcome.error ? (
        <Failure error={outcome.error} again={outcome.again} />
      ) : outcome.data === null ? (
        <Loading />
      ) : (
        <>
          <BeforeAfter run={run} outcome={outcome.data} />
          {outcome.data.warnings.length > 0 && <Warnings warnings={outcome.data.warnings} />}
          {known > 0 ? <HeldOut run={run} metrics={metrics} catalogue={catalogue} /> : <Empty title={t('no_outcome')} hint={t('no_outcome_hint')} />}
          <Highlights episodes={outcome.data.episodes} isMeasured={outcome.data.after !== null} />
          <div class="overview-halves">
            <Trained run={run} outcome={outcome.data} />
            <TokenAccount balance={outcome.data.balance} />
          </div>
        </>
      )}
    </section>
  )
}

function HeldOut({ run, metrics, catalogue }: Omit<Props, 'written'>) {
  const spoken = useStore(language)
  const charts = useMemo(
    () =>
      overview(catalogue)
        .filter(({ key }) => SHOWN.includes(key))
        .sort((a, b) => SHOWN.indexOf(a.key) - SHOWN.indexOf(b.key))
        .map((kind) => ({ kind, all: curves(kind, metrics.data ?? [], run, 'step') })),
    [metrics.data, run, catalogue, spoken],
  )
  return (
    <div class="charts">
      {charts.map(({ kind, all }) => (
        <Chart key={kind.key} kind={kind} all={all} axis="step" isFirst names={[run.run]} />
      ))}
    </div>
  )
}

function Trained({ run, outcome }: { run: Run; outcome: Outcome }) {
  const { trained, balance } = outcome
  const turn = useSource().turnAddress(run.run)
  const facts = [
    [t('model'), run.info.model ?? '–'],
    [t('backbone'), run.info.backbone ?? '–'],
    [t('steps'), integer(trained.steps)],
    [t('tasks_trained'), integer(trained.tasks)],
    [t('episodes_trained'), integer(trained.episodes)],
    [t('tokens_trained'), integer(balance.trained)],
    [t('time_trained'), duration(trained.seconds)],
    [t('time_whole'), duration(trained.elapsed_s)],
  ] as const
  return (
    <section>
      <h3>{t('what_was_trained')}</h3>
      {balance.trained === 0 && <p class="faint">{t('no_training')}</p>}
      {run.turn && turn && (
        <p>
          <a class="button" href={turn} target="_blank" rel="noopener" title={t('turn_hint')}>
            {t('turn_page')}
          </a>
        </p>
      )}
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  )
}
